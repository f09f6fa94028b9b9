"""Forward passes of one shape, so that the bits of a token's logits depend on its own sequence alone.

A sum is rounded in the order in which it is made, and a library's kernels choose that order by the shapes that they are
given (ours in ``fast/`` do not, and need none of this). In float32 the differences are far too small to matter; in
bfloat16 each may change a number by half a percent, and sooner or later a token. So where ``--deterministic`` is asked
of transformers' own forward, the tokens of a step, of decodes and chunks alike, run in *pieces* of exactly ``PIECE``
rows, the last one filled up:

    rows    0 1 2 3 4 5 6 7 8 9 ... 31 | 32 33 ...  - - -
            a b c c c c d d d d ...  d |  d  d  d   (filled up)

Every product, norm and activation then has the same shape in every pass, and which row a token is in, or what lies in
the others, does not touch its sums. Attention looks at *tiles*: ``TILE`` queries of one sequence, aligned to its own
positions, against all keys up to the tile's end. A token at position p is always row ``p % TILE`` of a tile of the same
shape, whether it is decoded alone or part of a chunk; the rows that are not there are zeros.

What that costs stands in ``docs/worker.md``. That it holds, for this model on this machine, is tried out at load.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from workers.attention import Arguments, attend_chunk
from workers.batch import View, head_rows, mask_of
from workers.kv_cache import KVPool, LayerKind
from workers.model import CausalModel
from workers.slots import Work

PIECE = 32
"""Tokens in a pass. A pass costs nearly the same for one token as for so many, and prompts as many passes."""

TILE = 8
"""Queries that attend together. A decode computes a whole tile for its one; a prompt gathers its keys for each."""

# --- layout: plain numbers --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """``length`` tokens of one sequence from position ``start`` on, in a piece from ``row`` on."""

    work: Work
    start: int
    length: int
    row: int

    @property
    def emits(self) -> bool:
        """Whether its last token is the one after which its sequence samples."""
        return self.work.emits and self.start + self.length == self.work.start + self.work.length


def cut(works: Sequence[Work]) -> list[list[Part]]:
    """The work of a step in pieces of at most ``PIECE`` tokens, in order."""
    pieces: list[list[Part]] = [[]]
    row = 0
    for work in works:
        at, end = work.start, work.start + work.length
        while at < end:
            if row == PIECE:
                pieces.append([])
                row = 0
            length = min(end - at, PIECE - row)
            pieces[-1].append(Part(work=work, start=at, length=length, row=row))
            at += length
            row += length
    return pieces


# --- passes -----------------------------------------------------------------------------------------------------------


class FixedShapes:
    """Runs the work of a step in passes of one shape. ``tables`` are the block tables of all slots, on the host."""

    def __init__(self, model: CausalModel, pool: KVPool, tables: Tensor) -> None:
        self._model = model
        self._pool = pool
        self._tables = tables
        self._kinds = tuple(dict.fromkeys(layer.kind for layer in model.layers))

    def emitted(self, works: Sequence[Work]) -> tuple[list[Work], Tensor]:
        """Those of ``works`` that emit, and logits [so many, vocabulary] for each of their last tokens."""
        emitting: list[Work] = []
        logits: list[Tensor] = []
        for piece in cut(works):
            last = {part.row + part.length - 1: part.work for part in piece if part.emits}
            emitting += last.values()
            logits.append(self._run(piece, list(last)))
        return emitting, torch.cat(logits)

    def all_logits(self, work: Work) -> Tensor:
        """Logits [length, vocabulary] for each token of ``work``."""
        return torch.cat([self._run(piece, list(range(_num_tokens(piece)))) for piece in cut([work])])

    def _run(self, piece: Sequence[Part], rows: list[int]) -> Tensor:
        device, missing = self._model.device, PIECE - _num_tokens(piece)
        ids = [token for part in piece for token in part.work.state.tokens[part.start : part.start + part.length]]
        positions = [at for part in piece for at in range(part.start, part.start + part.length)]
        attender = _Tiles(
            pool=self._pool,
            num_tokens=len(ids),
            kinds={kind: self._look(kind, piece) for kind in self._kinds},
        )
        keep = torch.arange(PIECE if rows else 0, device=device)  # all rows or none: the vocabulary is a product too
        logits = self._model.forward(
            torch.tensor(ids + [0] * missing, device=device),
            torch.tensor(positions + [0] * missing, device=device),
            keep,
            attender,
        )
        return logits[rows]

    def _look(self, kind: LayerKind, piece: Sequence[Part]) -> _KindTiles:
        size = self._pool.block_size
        slots = torch.tensor([part.work.state.slot for part in piece for _ in range(part.length)])
        positions = torch.tensor([at for part in piece for at in range(part.start, part.start + part.length)])
        blocks = self._tables[slots, positions // size]
        write_rows = head_rows(blocks[None], kind.kv_heads)[0] * size + positions % size
        return _KindTiles(
            write_rows=write_rows.flatten().to(self._model.device),
            tiles=tuple(tile for part in piece for tile in self._tiles(kind, part)),
        )

    def _tiles(self, kind: LayerKind, part: Part) -> list[_Tile]:
        tiles, at, end = [], part.start, part.start + part.length
        while at < end:
            first = at - at % TILE
            stop = min(first + TILE, end)
            row = part.row + at - part.start
            view = self._view(kind, slot=part.work.state.slot, first=first)
            tiles.append(_Tile(start=row, stop=row + stop - at, offset=at - first, view=view))
            at = stop
        return tiles

    def _view(self, kind: LayerKind, *, slot: int, first: int) -> View:
        """All keys up to the end of the tile of positions ``first ..``, the null block's where there is none yet."""
        size, device = self._pool.block_size, self._model.device
        wanted = -(-(first + TILE) // size)
        blocks = self._tables[slot, :wanted]
        blocks = pad(blocks, (0, wanted - len(blocks)), value=self._pool.null_block)
        mask = mask_of(torch.arange(first, first + TILE), wanted * size, kind.window, self._model.dtype)
        rows = head_rows(blocks[None], kind.kv_heads).flatten()
        return View(start=0, stop=TILE, rows=rows.to(device), mask=mask.to(device))


def _num_tokens(piece: Sequence[Part]) -> int:
    return sum(part.length for part in piece)


# --- attention --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tile:
    """Rows ``start .. stop`` of a piece are queries ``offset ..`` of a tile, which looks at ``view``."""

    start: int
    stop: int
    offset: int
    view: View


@dataclass(frozen=True, slots=True, kw_only=True)
class _KindTiles:
    """For all layers of a kind: where keys and values go ([kv_heads * tokens]), and who looks at what."""

    write_rows: Tensor
    tiles: tuple[_Tile, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tiles:
    """The attention of one piece (an ``Attender``). Rows from ``num_tokens`` on are nobody's."""

    pool: KVPool
    num_tokens: int
    kinds: Mapping[LayerKind, _KindTiles]

    def attend(self, arguments: Arguments, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        layer = arguments.layer
        kind = self.kinds[self.pool.layers[layer].kind]
        self.pool.write(layer, kind.write_rows, key[:, : self.num_tokens], value[:, : self.num_tokens])
        result = query.new_zeros(query.shape[1], query.shape[0], value.shape[2])
        for tile in kind.tiles:
            end = tile.offset + tile.stop - tile.start
            queries = pad(query[:, tile.start : tile.stop], (0, 0, tile.offset, TILE - end))
            result[tile.start : tile.stop] = attend_chunk(self.pool, tile.view, arguments, queries)[tile.offset : end]
        return result
