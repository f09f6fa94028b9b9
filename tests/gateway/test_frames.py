"""Framed connections: who is let in, and every way to lose a peer is the same exception."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gateway.frames import MOST_UNRECEIVED, FrameConnection, LinkLost
from gateway.handshake import FrameListener, dial
from tests.support import wait_until
from workers.wire import WIRE_VERSION, Auth, CancelSequences, Challenge, Hello, Message, encode

Serve = Callable[[FrameConnection], Awaitable[None]]


async def echo(connection: FrameConnection) -> None:
    while True:
        connection.send(await connection.receive())


@asynccontextmanager
async def listening(address: str, *, secret: bytes = b"", serve: Serve = echo) -> AsyncIterator[str]:
    listener = FrameListener(secret=secret, serve=serve)
    try:
        yield await listener.start(address)
    finally:
        await listener.close()


@asynccontextmanager
async def raw_peer(run_dir: Path, sent: bytes) -> AsyncIterator[str]:
    """A listener that sends ``sent`` and then is silent."""
    ended = asyncio.Event()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(sent)
        await reader.read()
        writer.close()
        await writer.wait_closed()
        ended.set()

    server = await asyncio.start_unix_server(accept, f"{run_dir}/raw")
    try:
        yield f"unix:{run_dir}/raw"
        await ended.wait()
    finally:
        server.close()


@pytest.mark.parametrize("scheme", ["unix", "tcp"])
async def test_messages_go_both_ways_over_both_kinds_of_sockets(run_dir: Path, scheme: str) -> None:
    """Unix sockets on one machine, TCP beyond it."""
    message = CancelSequences(sequence_ids=("a", "b"))
    async with listening({"unix": f"unix:{run_dir}/s", "tcp": "tcp:127.0.0.1:0"}[scheme], secret=b"s") as address:
        connection = await dial(address, name="me", secret=b"s")
        connection.send(message)
        assert await connection.expect(CancelSequences, 5.0) == message
        await connection.close()


async def test_a_wrong_secret_is_refused_with_a_reason(run_dir: Path) -> None:
    """An operator who mixed up two secret files reads it in the log."""
    async with listening(f"unix:{run_dir}/s", secret=b"right") as address:
        connection = await dial(address, name="me", secret=b"wrong")
        with pytest.raises(LinkLost, match="secret does not match"):
            await connection.receive()
        await connection.close()


async def test_what_is_sent_behind_the_proof_may_be_long(run_dir: Path) -> None:
    """A link that was lost begins with all that may not have arrived, and its peer may read both in one go."""
    long = CancelSequences(sequence_ids=tuple(str(number) for number in range(2_000)))
    async with listening(f"unix:{run_dir}/s") as address:
        connection = await dial(address, name="me", secret=b"")
        for _ in range(3):
            connection.send(long)
        for _ in range(3):
            assert await connection.expect(CancelSequences, 5.0) == long
        await connection.close()


async def test_a_stranger_cannot_make_the_listener_hold_a_long_frame(run_dir: Path) -> None:
    """Memory is for those who have proved themselves."""
    async with listening(f"unix:{run_dir}/s") as address:
        reader, writer = await asyncio.open_unix_connection(address.removeprefix("unix:"))
        await reader.readexactly(4)
        writer.write((50_000_000).to_bytes(4, "big"))
        async with asyncio.timeout(5.0):
            while await reader.read(4096):
                pass
        writer.close()
        await writer.wait_closed()


async def test_nobody_listening_is_a_lost_link(run_dir: Path) -> None:
    """A worker that is not up yet is the most common case of all."""
    with pytest.raises(LinkLost, match="cannot be reached"):
        await dial(f"unix:{run_dir}/nothing", name="me", secret=b"")


async def test_an_address_that_is_none_is_a_lost_link() -> None:
    """Addresses of other gateways come from the store, and must not end a task here."""
    with pytest.raises(LinkLost, match="neither unix"):
        await dial("http://example", name="me", secret=b"")


@pytest.mark.parametrize(
    ("sent", "problem"),
    [
        (b"", "sent no Challenge within"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "sent nonsense"),
        (encode(CancelSequences(sequence_ids=())), "where Challenge was due"),
        (encode(Challenge(version=99, nonce=b"n" * 32)), "version 99"),
    ],
)
async def test_a_peer_that_does_not_speak_the_wire_is_a_lost_link(run_dir: Path, sent: bytes, problem: str) -> None:
    """A wrong port must give a sentence, in time."""
    async with raw_peer(run_dir, sent) as address:
        with pytest.raises(LinkLost, match=problem):
            await dial(address, name="me", secret=b"", timeout_s=0.2)


async def test_an_aborted_connection_says_why(run_dir: Path) -> None:
    """The log must name the watchdog, not only a closed socket."""
    async with listening(f"unix:{run_dir}/s") as address:
        connection = await dial(address, name="me", secret=b"")
        connection.abort("made no progress")
        with pytest.raises(LinkLost, match="made no progress"):
            await connection.receive()
        with pytest.raises(LinkLost, match="made no progress"):
            connection.send(CancelSequences(sequence_ids=()))


async def test_a_message_of_another_kind_than_expected_is_a_lost_link(run_dir: Path) -> None:
    """Each handshake has one order."""
    async with listening(f"unix:{run_dir}/s") as address:
        connection = await dial(address, name="me", secret=b"")
        connection.send(Auth(version=1, digest=b"", peer="me"))
        with pytest.raises(LinkLost, match="sent Auth where Hello was due"):
            await connection.expect(Hello, 5.0)
        await connection.close()


async def test_messages_are_handed_on_in_the_call_that_brings_them(run_dir: Path) -> None:
    """On the path of a step no task is woken; what came before, in the handshake's shadow, comes first."""
    messages = [CancelSequences(sequence_ids=(name,)) for name in "abc"]
    arrived: list[Message] = []
    async with listening(f"unix:{run_dir}/s") as address:
        connection = await dial(address, name="me", secret=b"")
        connection.send(messages[0])
        await wait_until(lambda: bool(connection._arrived), "one waits")
        listening_to = asyncio.create_task(connection.hand_on(arrived.extend))
        connection.send(messages[1])
        connection.send(messages[2])
        await wait_until(lambda: len(arrived) == 3, "all have come")
        listening_to.cancel()
        await asyncio.wait([listening_to])
        await connection.close()
    assert arrived == messages


async def test_what_fails_in_taking_a_message_is_raised_to_whoever_listens(run_dir: Path) -> None:
    """A fault must end the driver that made it, and not only appear in the event loop's log."""

    def take(messages: Sequence[Message]) -> None:
        raise ValueError(len(messages))

    async with listening(f"unix:{run_dir}/s") as address:
        connection = await dial(address, name="me", secret=b"")
        connection.send(CancelSequences(sequence_ids=()))
        with pytest.raises(ValueError, match="1"):
            await connection.hand_on(take)
        await connection.close()


async def test_a_link_that_is_lost_ends_the_listening(run_dir: Path) -> None:
    """Else a driver would wait for ever for the reports of a dead worker."""

    async def leave(_: FrameConnection) -> None:
        raise LinkLost("leaves at once")

    async with listening(f"unix:{run_dir}/s", serve=leave) as address:
        connection = await dial(address, name="me", secret=b"")
        with pytest.raises(LinkLost, match="closed the connection"):
            await connection.hand_on(lambda _: None)
        await connection.close()


async def test_what_nobody_receives_is_not_read_without_bound(run_dir: Path) -> None:
    """A peer that talks on while nobody listens fills its own buffers, not our memory."""
    frame = encode(CancelSequences(sequence_ids=("a" * 60_000,)))
    async with raw_peer(run_dir, encode(Challenge(version=WIRE_VERSION, nonce=b"n" * 32)) + 1000 * frame) as address:
        connection = await dial(address, name="me", secret=b"")
        await wait_until(lambda: not connection._transport.is_reading(), "it reads no more")
        assert len(connection._arrived) < 2 * MOST_UNRECEIVED
        for _ in range(1000):
            await connection.expect(CancelSequences, 5.0)
        await connection.close()
