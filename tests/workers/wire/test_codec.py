"""Messages survive the wire unchanged, and nothing else gets through it."""

from __future__ import annotations

import dataclasses
import math
import pickle
import struct
import tracemalloc
from typing import Any, get_args

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.workers.wire.strategies import messages, of_class
from workers.wire import (
    MAX_ITEMS,
    CancelSequences,
    Challenge,
    Logprobs,
    Message,
    NewSequence,
    PlanMessage,
    Refusal,
    ReportMessage,
    Sampling,
    Welcome,
    WireError,
    decode,
    encode,
)
from workers.wire.codec import MESSAGE_TYPES, unpack_message

SEQUENCE = NewSequence(
    slot=0, sequence_id="a", tokens=(1, 2), emitted=0, computed=0, max_tokens=4, sampling=Sampling(), blocks=(0,)
)
PLAN = PlanMessage(step=1, epoch=1, frees=(), starts=(SEQUENCE,), grows=(), copies=((1, 2),), prefill=(), decode=(3,))
REPORT = ReportMessage(step=1, epoch=1, tokens=((0, 5),), finished=((0, "stop"),), live_blocks=1, busy_us=1, idle_us=0)

NAN = struct.pack("<d", math.nan)


def scores(own: float) -> Logprobs:
    return Logprobs(slot=0, start=1, own=(own,), top_ids=(), top=())


def frame_of(*values: Any) -> bytes:
    payload = msgpack.packb(values)
    return len(payload).to_bytes(4, "big") + payload


def test_the_table_names_every_message_once() -> None:
    """A message without a number could never be sent."""
    assert sorted(kind.__name__ for kind in MESSAGE_TYPES.values()) == sorted(
        kind.__name__ for kind in get_args(Message)
    )


@pytest.mark.parametrize("kind", MESSAGE_TYPES.values(), ids=lambda kind: kind.__name__)
@given(data=st.data())
def test_a_message_comes_back_equal(kind: type, data: st.DataObject) -> None:
    """What was planned is what runs."""
    message = data.draw(of_class(kind))
    returned = decode(encode(message))
    assert returned == message
    assert type(returned) is kind


@given(payload=st.binary(max_size=200))
def test_arbitrary_bytes_raise_nothing_but_a_wire_error(payload: bytes) -> None:
    """A peer's bytes must not choose which exception a worker dies of."""
    with pytest.raises(WireError):
        unpack_message(payload)


@given(message=messages(), data=st.data())
def test_a_mutated_frame_is_another_message_or_a_wire_error(message: Message, data: st.DataObject) -> None:
    """Damage is either seen or harmless; it is never an exception that nobody expects."""
    frame = bytearray(encode(message))
    for _ in range(data.draw(st.integers(1, 4))):
        frame[data.draw(st.integers(4, len(frame) - 1))] = data.draw(st.integers(0, 255))
    try:
        returned = decode(bytes(frame))
    except WireError:
        return
    assert type(returned) in MESSAGE_TYPES.values()


@given(message=messages(), data=st.data())
def test_a_truncated_payload_is_a_wire_error(message: Message, data: st.DataObject) -> None:
    """Half a plan must not run."""
    payload = encode(message)[4:]
    with pytest.raises(WireError):
        unpack_message(payload[: data.draw(st.integers(0, len(payload) - 1))])


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ((5, 1), "Welcome has 1 fields, not 2"),
        ((5, 1, 2, 3), "Welcome has 3 fields, not 2"),
        ((5, True, 2), r"Welcome\.epoch is a bool, not a number"),
        ((5, 1.0, 2), r"Welcome\.epoch is a float, not a number"),
        ((5, -1, 2), r"Welcome\.epoch is -1, outside 0"),
        ((5, 2**63, 2), r"Welcome\.epoch is 9223372036854775808, outside 0"),
        ((5, None, 2), r"Welcome\.epoch is nothing, not a number"),
        ((3, b"why"), r"Refusal\.message is a bytes, not a string"),
        ((1, 1, "nonce"), r"Challenge\.nonce is a str, not bytes"),
        ((34, "abc"), r"CancelSequences\.sequence_ids is a str, not a list"),
        ((34, [b"a"]), r"CancelSequences\.sequence_ids\[0\] is a bytes, not a string"),
        ((17, 1, 1, b"\0" * 12, [], 0, 0, 0, [], 0), r"ReportMessage\.tokens holds half a pair"),
        ((17, 1, 1, b"\0" * 3, [], 0, 0, 0, [], 0), r"ReportMessage\.tokens is not a run of 32-bit numbers"),
        ((17, 1, 1, b"", [[1]], 0, 0, 0, [], 0), r"ReportMessage\.finished\[0\] has 1 members, not 2"),
        ((17, 1, 1, b"", [], 0, 0, 0, [[1, 1, b"abc", b"", b""]], 0), r"\.own is not a run of 64-bit floats"),
        ((17, 1, 1, b"", [], 0, 0, 0, [[1, 1, NAN, b"", b""]], 0), r"\.own holds something that is not finite"),
        ((99, 1), "99 is not a known message type"),
        ((True, 1), "not an array that begins with a message type"),
        ((), "not an array that begins with a message type"),
    ],
)
def test_a_frame_that_does_not_fit_is_refused_by_name(values: tuple[Any, ...], sentence: str) -> None:
    """Strict types: what an engine indexes with must be what the message says."""
    with pytest.raises(WireError, match=sentence):
        decode(frame_of(*values))


def test_trailing_bytes_are_refused() -> None:
    """A frame holds one message; a second one behind it would be smuggled."""
    payload = encode(Refusal(message="no"))[4:] + b"\xc0"
    with pytest.raises(WireError, match="not one msgpack value"):
        unpack_message(payload)


@pytest.mark.parametrize(
    "value", [{"a": 1}, msgpack.ExtType(5, b"x"), msgpack.Timestamp(1)], ids=["map", "extension", "timestamp"]
)
def test_values_without_a_place_in_any_message_are_refused(value: Any) -> None:
    """Only arrays and scalars are on the wire."""
    with pytest.raises(WireError):
        decode(frame_of(3, value))


def test_a_pickle_is_only_a_bad_frame() -> None:
    """F03: unpickling a peer's bytes is running a peer's code."""
    payload = pickle.dumps({"any": "thing"})
    with pytest.raises(WireError):
        decode(len(payload).to_bytes(4, "big") + payload)


@pytest.mark.parametrize(
    "payload",
    [
        b"\xdd\xff\xff\xff\xff",
        b"\xdd\x00\x00\x40\x00" * 1000,
        b"\x92\x03\xdb\xff\xff\xff\xff",
        b"\x92\x03\xc6\xff\xff\xff\xff",
        b"\x91" * 5000,
    ],
    ids=["long array", "nested long arrays", "long string", "long binary", "deep nesting"],
)
def test_a_declared_length_reserves_no_memory_to_speak_of(payload: bytes) -> None:
    """A few bytes must not cost gigabytes."""
    tracemalloc.start()
    try:
        with pytest.raises(WireError):
            unpack_message(payload)
        assert tracemalloc.get_traced_memory()[1] < 256 * 1024 * 1024
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("message", "sentence"),
    [
        (Welcome(epoch=2**64, max_in_flight=1), r"Welcome\.epoch is 18446744073709551616, outside"),
        (Welcome(epoch=True, max_in_flight=1), r"Welcome\.epoch is a bool"),
        (Refusal(message="\ud800"), r"Refusal\.message holds a lone surrogate"),
        (Refusal(message="x" * 70_000), r"Refusal\.message takes 70000 bytes"),
        (Challenge(version=1, nonce="text"), r"Challenge\.nonce is a str"),  # type: ignore[arg-type]
        (dataclasses.replace(PLAN, decode=(1, True)), r"PlanMessage\.decode holds something that is not a number"),
        (dataclasses.replace(PLAN, decode=(-1,)), r"PlanMessage\.decode holds a number outside"),
        (dataclasses.replace(PLAN, decode=(2**32,)), r"PlanMessage\.decode holds a number outside"),
        (dataclasses.replace(PLAN, decode=[1]), r"PlanMessage\.decode is a list"),
        (dataclasses.replace(PLAN, copies=((1, 2, 3),)), r"PlanMessage\.copies holds something that is not a pair"),
        (dataclasses.replace(REPORT, logprobs=(scores(1),)), r"logprobs\[0\]\.own holds something that is not a float"),
        (dataclasses.replace(REPORT, logprobs=(scores(math.inf),)), r"logprobs\[0\]\.own holds .* not finite"),
        (CancelSequences(sequence_ids=("a",) * (MAX_ITEMS + 1)), r"CancelSequences\.sequence_ids has 16385 members"),
    ],
)
def test_a_value_that_cannot_be_encoded_is_refused_by_name(message: Message, sentence: str) -> None:
    """F05: the sender that made it learns of it, before its peer does."""
    with pytest.raises(WireError, match=sentence):
        encode(message)


@pytest.mark.parametrize("temperature", [float("nan"), float("inf")])
def test_the_error_names_the_one_bad_sequence_of_a_plan(temperature: float) -> None:
    """F05: then only that sequence has to fail, not its neighbours."""
    bad = dataclasses.replace(SEQUENCE, sampling=Sampling(temperature=temperature))
    with pytest.raises(WireError, match=r"PlanMessage\.starts\[1\]\.sampling\.temperature is not finite"):
        encode(dataclasses.replace(PLAN, starts=(SEQUENCE, bad, SEQUENCE)))


def test_a_part_of_a_message_is_no_message() -> None:
    """Only what the table names travels alone."""
    with pytest.raises(WireError, match="Sampling is not a message"):
        encode(Sampling())  # type: ignore[arg-type]


def test_a_whole_number_may_stand_for_a_float() -> None:
    """Clients write ``"temperature": 1``; the engine gets a float."""
    start = dataclasses.replace(SEQUENCE, sampling=Sampling(temperature=1))
    (returned,) = decode(encode(dataclasses.replace(PLAN, starts=(start,)))).starts  # type: ignore[union-attr]
    assert type(returned.sampling.temperature) is float
