"""From the work of a plan to the rows of the kernels.

Every token is a row. A step is cut into *passes* of bounded length, each of which goes through all layers before the
next begins; so the working memory has one size however long a plan's prompts are, and stays in the processor's cache.
Within a pass the rows of a sequence are cut into *tiles* of a few queries that read the keys together (see
native/attention.h).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor

from workers.slots import Work

PASS_ROWS = 512
"""Enough rows that a product is bound by arithmetic; their activations take some MiB in a small model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """Rows ``first .. first + rows`` of a step. [rows] each of ids, positions and slots; ``tiles`` is [tiles, 4]:
    first row within the pass, number of queries, position of the first, slot.
    """

    first: int
    rows: int
    ids: Tensor
    positions: Tensor
    slots: Tensor
    tiles: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Some of the tokens of a work, from position ``start`` on."""

    work: Work
    start: int
    length: int


def lay_out_passes(works: Sequence[Work], *, queries_per_tile: int, pass_rows: int = PASS_ROWS) -> tuple[Pass, ...]:
    """The tokens of ``works``, in order."""
    passes: list[Pass] = []
    first = 0
    for pieces in _cut(works, pass_rows):
        passes.append(_pass(pieces, first, queries_per_tile))
        first += passes[-1].rows
    return tuple(passes)


def emit_rows(works: Sequence[Work]) -> list[int]:
    """The step's row of the last token of each work that emits."""
    ends = accumulate(work.length for work in works)
    return [end - 1 for work, end in zip(works, ends, strict=True) if work.emits]


def _cut(works: Sequence[Work], pass_rows: int) -> Iterator[list[Piece]]:
    pieces: list[Piece] = []
    room = pass_rows
    for work in works:
        done = 0
        while done < work.length:
            length = min(work.length - done, room)
            pieces.append(Piece(work=work, start=work.start + done, length=length))
            done, room = done + length, room - length
            if room == 0:
                yield pieces
                pieces, room = [], pass_rows
    if pieces:
        yield pieces


def _pass(pieces: Sequence[Piece], first: int, queries_per_tile: int) -> Pass:
    ids: list[int] = []
    tiles: list[tuple[int, int, int, int]] = []
    for piece in pieces:
        row = len(ids)
        ids += piece.work.state.tokens[piece.start : piece.start + piece.length]
        for done in range(0, piece.length, queries_per_tile):
            count = min(queries_per_tile, piece.length - done)
            tiles.append((row + done, count, piece.start + done, piece.work.state.slot))
    table = np.array(tiles, dtype=np.int64)
    counts = table[:, 1]
    within = np.arange(len(ids)) - np.repeat(table[:, 0], counts)
    return Pass(
        first=first,
        rows=len(ids),
        ids=torch.tensor(ids),
        positions=torch.from_numpy(np.repeat(table[:, 2], counts) + within),
        slots=torch.from_numpy(np.repeat(table[:, 3], counts)),
        tiles=torch.from_numpy(table),
    )
