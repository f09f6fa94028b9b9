"""Scripts are public functions: each declares what it takes, and the loader holds it to that."""

from __future__ import annotations

from importlib import resources

import pytest
import redis.asyncio

from admission.keys import QueueKeys
from admission.queue import QueueBounds
from admission.scripts import QueueScripts, ScriptError, load_script


def test_every_script_file_declares_its_keys() -> None:
    """A header that nobody checks is soon wrong."""
    names = sorted(
        path.name.removesuffix(".lua")
        for path in (resources.files("admission") / "lua").iterdir()
        if not path.name.startswith("_")
    )
    of_leases = {"next_epoch", "release_lease", "renew_lease", "take_lease"}
    assert of_leases < set(names)
    for name in names:
        num_keys = 1 if name in of_leases else len(QueueKeys.of("m").in_order())
        assert load_script(name, num_keys=num_keys).name == name


def test_a_wrong_key_count_is_refused() -> None:
    """It would read one key as another."""
    with pytest.raises(ScriptError, match=r"offer.lua declares 16 keys, 3 are passed"):
        load_script("offer", num_keys=3)


def test_a_file_without_a_header_is_refused() -> None:
    """The shared part is no act of its own."""
    with pytest.raises(ScriptError, match="does not open with its name"):
        load_script("_entries", num_keys=16)


async def test_a_redis_that_lost_its_scripts_is_given_them_again(redis_client: redis.asyncio.Redis) -> None:
    """A restarted Redis knows no digest, and the first call must not fail for it."""
    scripts = QueueScripts(redis_client, keys=QueueKeys.of("m"), bounds=QueueBounds(max_requests=1))
    await scripts.withdraw("a")
    await redis_client.script_flush()
    await scripts.withdraw("a")
