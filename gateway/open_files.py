"""How many files this process may hold open, as far as that bounds its connections.

Out of descriptors, a server cannot even accept a connection to refuse it. So the bound on connections is kept below the
limit of the system, whose soft half (often 1024) is first raised to the hard one, as every process may.
"""

from __future__ import annotations

import resource

import structlog

RESERVED_FILES = 512
"""For all but HTTP clients: Redis, workers, other gateways, spare connections, files."""

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


def connections_that_fit(wanted: int) -> int:
    """``wanted`` connections, or as many as the system allows, at least one; the log says when that is less."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted + RESERVED_FILES
    if soft == resource.RLIM_INFINITY or needed <= soft:
        return wanted
    raised = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
    allowed = max(1, min(wanted, raised - RESERVED_FILES))
    if allowed < wanted:
        log.warning("fewer connections than configured, as the system allows no more open files", connections=allowed)
    return allowed
