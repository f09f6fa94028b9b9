"""The directory, on a real Redis."""

from __future__ import annotations

import asyncio

import pytest
import redis.asyncio

from admission.keys import MODEL_PREFIX
from gateway.directory import Directory
from gateway.forecast import DriverSpeed
from workers.wire import ModelCard, TokenizerFiles

ADDRESS = "unix:/run/w0"
FILES = TokenizerFiles(digest="d1", files=(("tokenizer.json", b"{}"), ("chat_template.jinja", b"\xff\x00")))


def card(name: str = "m", digest: str = "d1") -> ModelCard:
    return ModelCard(
        name=name,
        context_length=512,
        vocab_size=300,
        eos_ids=(2, 0),
        tokenizer_digest=digest,
        dtype="float32",
        device="cpu",
    )


@pytest.fixture
def first(redis_client: redis.asyncio.Redis) -> Directory:
    return Directory(redis_client, gateway_id="g0")


@pytest.fixture
def second(redis_client: redis.asyncio.Redis) -> Directory:
    return Directory(redis_client, gateway_id="g1")


async def test_a_gateway_is_found_until_it_withdraws(first: Directory, second: Directory) -> None:
    """Drivers dial origins by what they find here."""
    assert await second.relay_address("g0") is None
    await first.announce("unix:/run/g0")
    assert await second.relay_address("g0") == "unix:/run/g0"
    await first.withdraw()
    assert await second.relay_address("g0") is None


async def test_a_worker_has_one_holder_at_a_time(first: Directory, second: Directory) -> None:
    """Two drivers would plan against each other."""
    assert await first.take_worker(ADDRESS) is not None
    assert await second.take_worker(ADDRESS) is None
    assert await first.renew_worker(ADDRESS)
    assert not await second.renew_worker(ADDRESS)
    await second.release_worker(ADDRESS)
    assert await second.take_worker(ADDRESS) is None, "who does not hold a lease cannot end it"
    await first.release_worker(ADDRESS)
    assert await second.take_worker(ADDRESS) is not None


async def test_a_released_lease_cannot_be_renewed(first: Directory) -> None:
    """A holder must learn that it lost the worker."""
    await first.take_worker(ADDRESS)
    await first.release_worker(ADDRESS)
    assert not await first.renew_worker(ADDRESS)


async def test_every_take_gives_a_greater_epoch(first: Directory, second: Directory) -> None:
    """The fence: whoever comes later outranks whoever came before, also after the same gateway took it again."""
    epochs = [await first.take_worker(ADDRESS), await first.take_worker(ADDRESS)]
    await first.release_worker(ADDRESS)
    epochs.append(await second.take_worker(ADDRESS, above_epoch=1_000))
    await second.release_worker(ADDRESS)
    epochs.append(await first.take_worker(ADDRESS))
    known = [epoch for epoch in epochs if epoch is not None]
    assert len(known) == 4
    assert known == sorted(set(known))
    assert known[2] > 1_000, "an epoch that only the worker remembers counts too"


async def test_one_of_many_takers_wins(redis_client: redis.asyncio.Redis) -> None:
    """Gateways that start together race for the same workers."""
    gateways = [Directory(redis_client, gateway_id=f"g{number}") for number in range(8)]
    epochs = await asyncio.gather(*(gateway.take_worker(ADDRESS) for gateway in gateways))
    assert sum(epoch is not None for epoch in epochs) == 1


async def test_models_are_listed_once_by_name_and_read_by_others(first: Directory, second: Directory) -> None:
    """Any gateway accepts a request for what any driver serves."""
    await first.publish_model(card("b"), FILES)
    await first.publish_model(card("a/odd:name"), FILES)
    await second.publish_model(card("b"), FILES)
    assert await second.models() == (card("a/odd:name"), card("b"))
    assert await second.tokenizer_files("d1") == FILES
    assert await second.tokenizer_files("d2") is None


async def test_an_unreadable_entry_is_passed_over(first: Directory, redis_client: redis.asyncio.Redis) -> None:
    """A gateway of another version must not blind this one."""
    await first.publish_model(card("m"), FILES)
    await redis_client.set(f"{MODEL_PREFIX}zzz:d1", b"not a frame", px=1000)
    assert await first.models() == (card("m"),)


async def test_a_lease_that_was_given_up_is_told_from_one_that_is_lost(
    first: Directory, redis_client: redis.asyncio.Redis
) -> None:
    """The one is free for all at once; the other has a holder that may only have been forgotten."""
    await first.take_worker(ADDRESS)
    await first.release_worker(ADDRESS)
    assert await first.knows_worker(ADDRESS)
    await redis_client.flushall()
    assert not await first.knows_worker(ADDRESS)


async def test_the_speeds_of_driven_workers_are_known_to_all(first: Directory, second: Directory) -> None:
    """Every gateway predicts waits from the whole cluster's speed, not from its own part."""
    assert await second.speeds(()) == ()
    assert await second.speeds((ADDRESS, "unix:/run/w1")) == ()
    measured = DriverSpeed(model="m", tokens_per_s=12.5)
    fresh = DriverSpeed(model="m", tokens_per_s=None)
    await first.publish_speed(ADDRESS, measured)
    await first.publish_speed("unix:/run/w1", fresh)
    assert await second.speeds((ADDRESS, "unix:/run/w1", "unix:/run/w2")) == (measured, fresh)
