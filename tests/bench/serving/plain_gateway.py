"""``sluicegate gateway`` on asyncio's own event loop, to compare."""

from __future__ import annotations

import asyncio
import sys

from gateway.collector import relieve_collector
from gateway.logs import configure_logs
from gateway.serve import serve
from gateway.settings import GatewaySettings

if __name__ == "__main__":
    settings = GatewaySettings.load(sys.argv[1:])
    configure_logs(f"gateway {settings.gateway_id}")
    relieve_collector()
    asyncio.run(serve(settings))
