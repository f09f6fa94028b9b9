"""What a step's work comes down to: a few rows of integers, made on the host and sent in two copies.

    ids        the token of each row, where the host knows it ...
    fed        ... and whether the device must take it from the last token of its slot instead
    slots      whose it is
    positions  where in its sequence

With two plans in flight the host begins a step before it has read the last one's tokens. They are on the device
already: ``LastTokens`` holds one for each slot, every step writes there what it sampled, and a row that is *fed* takes
its token from there.

Of a decode that is padded to a bucket the rows beyond the work belong to nobody. They compute token 0 at position 0 of
the *scratch block*, which no table of a sequence ever names, and what they sample goes to a slot that does not exist.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from workers.cuda.buckets import Bucket
from workers.device import send
from workers.slots import Work

IDS, FED, SLOTS, POSITIONS = range(4)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepInputs:
    """``rows`` is [4, tokens], as above; ``tables`` [sequences, blocks] in 32 bits, as the kernels want them."""

    rows: Tensor
    tables: Tensor

    @property
    def ids(self) -> Tensor:
        return self.rows[IDS]

    @property
    def fed(self) -> Tensor:
        return self.rows[FED]

    @property
    def slots(self) -> Tensor:
        return self.rows[SLOTS]

    @property
    def positions(self) -> Tensor:
        return self.rows[POSITIONS]

    def on(self, device: torch.device) -> StepInputs:
        return StepInputs(rows=send(self.rows, device), tables=send(self.tables, device))


def decode_inputs(works: Sequence[Work], tables: Tensor, bucket: Bucket, *, scratch_block: int) -> StepInputs:
    """One row for each work, which computes one token, and padding up to the bucket.

    ``tables`` are those of all slots; the padding's slot is the one after the last.
    """
    padding = bucket.rows - len(works)
    columns = [(*_token(work, 0), work.state.slot, work.start) for work in works]
    columns += [(0, 0, tables.shape[0], 0)] * padding
    wide = torch.full((bucket.rows, bucket.blocks), scratch_block, dtype=torch.int32)
    width = min(bucket.blocks, tables.shape[1])
    wide[: len(works), :width] = tables[[work.state.slot for work in works], :width].to(torch.int32)
    return StepInputs(rows=torch.tensor(columns, dtype=torch.int64).T.contiguous(), tables=wide)


def flat_inputs(works: Sequence[Work], tables: Tensor, *, block_size: int) -> StepInputs:
    """All tokens of any works side by side; the tables of their sequences, as wide as the longest needs."""
    columns = [
        (*_token(work, offset), work.state.slot, work.start + offset) for work in works for offset in range(work.length)
    ]
    width = -(-max(work.start + work.length for work in works) // block_size)
    of_works = tables[[work.state.slot for work in works], :width].to(torch.int32)
    return StepInputs(rows=torch.tensor(columns, dtype=torch.int64).T.contiguous(), tables=of_works.contiguous())


def _token(work: Work, offset: int) -> tuple[int, int]:
    """(id, 0), or (0, 1) for a token that the host has not read yet."""
    tokens, at = work.state.tokens, work.start + offset
    return (tokens[at], 0) if at < len(tokens) else (0, 1)


class LastTokens:
    """The last token that each slot sampled, on the device, and a zero for the slot that padding names."""

    def __init__(self, max_slots: int, device: torch.device) -> None:
        self._tokens = torch.zeros(max_slots + 1, dtype=torch.int64, device=device)

    def feed(self, inputs: StepInputs) -> Tensor:
        """The ids of a step's rows, on the device."""
        return torch.where(inputs.fed == 1, self._tokens[inputs.slots], inputs.ids)

    def note(self, slots: Tensor, tokens: Tensor) -> None:
        """``slots``, a list on the host, have sampled ``tokens``."""
        self._tokens.index_copy_(0, send(slots, self._tokens.device), tokens)
