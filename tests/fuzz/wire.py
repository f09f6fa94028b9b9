"""Bytes from a mutator that watches which branches they reach, into the wire's decoder.

``python -m tests.fuzz.wire CORPUS -max_total_time=60`` in an environment with ``atheris`` and ``msgpack``, beside the
standing tests of Hypothesis (``tests/workers/test_fuzz.py``, ``tests/workers/wire``). A frame is refused with
``WireError`` or is a message, which then travels as it is; anything else ends the run with the bytes that did it. The
folder CORPUS is made if need be, and keeps what was found; other options are libFuzzer's.
"""

from __future__ import annotations

import sys
from itertools import pairwise
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["workers.wire"]):
    from workers.wire import (
        Auth,
        FrameDecoder,
        Logprobs,
        Message,
        NewSequence,
        PlanMessage,
        PrefillSpan,
        ReportMessage,
        Sampling,
        TokenizerFiles,
        Welcome,
        WireError,
        decode,
        encode,
    )

MOST_PIECES = 4


START = NewSequence(
    slot=1,
    sequence_id="s",
    tokens=(5, 6),
    emitted=0,
    computed=0,
    max_tokens=4,
    sampling=Sampling(logit_bias=((3, 1.5),), top_k=4),
    blocks=(0,),
)
PLAN = PlanMessage(
    step=1,
    epoch=2,
    frees=(3,),
    starts=(START,),
    grows=(),
    copies=((1, 2),),
    prefill=(PrefillSpan(slot=1, start=0, length=2, emits=True),),
    decode=(2,),
    drops=("old",),
)
SCORES = Logprobs(slot=1, start=2, own=(-0.5,), top_ids=(7,), top=(-0.5,))
REPORT = ReportMessage(
    step=1, epoch=2, tokens=((1, 7),), finished=((2, "stop"),), live_blocks=1, busy_us=5, idle_us=6, logprobs=(SCORES,)
)
SEEDS: tuple[Message, ...] = (
    PLAN,
    REPORT,
    Auth(version=2, digest=b"d", peer="p"),
    Welcome(epoch=1, max_in_flight=2),
    TokenizerFiles(digest="d", files=(("tokenizer.json", b"{}"),)),
)
"""Where the mutator begins: it would be long in finding out by itself what a message looks like."""

FILLER = bytes(2 * MOST_PIECES)
"""What the cuts are made of, at an input's end."""


def main() -> None:
    corpus = Path(sys.argv[1])
    corpus.mkdir(exist_ok=True)
    for number, message in enumerate(SEEDS):
        (corpus / f"seed-{number}").write_bytes(encode(message)[4:] + FILLER)
    atheris.Setup(sys.argv, look_at)
    atheris.Fuzz()


def look_at(data: bytes) -> None:
    """One input: how it is cut into pieces, then a payload; and the same as a whole stream of frames."""
    given = atheris.FuzzedDataProvider(data)
    cuts = [given.ConsumeIntInRange(0, 1 << 12) for _ in range(MOST_PIECES)]
    payload = given.ConsumeBytes(1 << 16)
    for stream in (payload, len(payload).to_bytes(4, "big") + payload):
        whole, pieces = read([stream]), read(in_pieces(stream, cuts))
        assert whole == pieces, "what a frame holds depends on how it was cut"
        for message in whole or []:
            assert decode(encode(message)) == message


def in_pieces(stream: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    return [stream[start:end] for start, end in pairwise(edges)]


def read(pieces: list[bytes]) -> list[Message] | None:
    """The messages of a stream; None: refused."""
    decoder = FrameDecoder()
    messages: list[Message] = []
    try:
        for piece in pieces:
            messages += decoder.feed(piece)
    except WireError:
        return None
    return messages


if __name__ == "__main__":
    main()
