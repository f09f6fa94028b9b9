"""Which sequences lie in host memory, how much of it they take, and what moves there and back.

A sequence is kept under its id, as so many computed tokens, in whole blocks. It is there until a plan starts it again
from there, drops it, or the driver is lost. The bound is announced to the driver, who counts as well: a plan that would
pass it is refused, and nothing is ever pushed out to make room.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from workers.executor import PlanError


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """``blocks`` go to host memory, or come back from there: those of the sequence's table from ``first`` on."""

    sequence_id: str
    first: int
    blocks: tuple[int, ...]


@dataclass(slots=True, kw_only=True)
class Moves:
    """What plans ask of the pool before their work, in this order; ``scrub``: suspect blocks that got a new owner."""

    drops: list[str] = field(default_factory=list)
    outs: list[Transfer] = field(default_factory=list)
    scrub: list[int] = field(default_factory=list)
    ins: list[Transfer] = field(default_factory=list)


class SwappedTable:
    """At most ``host_blocks`` blocks' worth of sequences. After a ``PlanError`` nothing but ``reset`` makes sense."""

    def __init__(self, *, host_blocks: int, block_size: int) -> None:
        self._host_blocks = host_blocks
        self._block_size = block_size
        self._tokens: dict[str, int] = {}
        self.blocks_in_use = 0

    def reset(self) -> None:
        self._tokens.clear()
        self.blocks_in_use = 0

    def keep(self, sequence_id: str, tokens: int) -> int:
        """Keep so many tokens of a sequence; the blocks that they take."""
        if sequence_id in self._tokens:
            raise PlanError(f"{sequence_id} is swapped out, but is so already")
        blocks = self._blocks(tokens)
        if tokens == 0 or self.blocks_in_use + blocks > self._host_blocks:
            raise PlanError(
                f"{sequence_id} is swapped out with {tokens} tokens;"
                f" {self.blocks_in_use} of {self._host_blocks} host blocks are taken"
            )
        self._tokens[sequence_id] = tokens
        self.blocks_in_use += blocks
        return blocks

    def take_back(self, sequence_id: str, tokens: int) -> None:
        """It starts again with so many tokens computed, which have to be all that it left with."""
        kept = self._tokens.get(sequence_id)
        if kept != tokens:
            raise PlanError(f"{sequence_id} is to come back with {tokens} tokens; {kept or 0} are kept")
        self.drop(sequence_id)

    def drop(self, sequence_id: str) -> None:
        """Nobody wants it any more."""
        tokens = self._tokens.pop(sequence_id, None)
        if tokens is None:
            raise PlanError(f"{sequence_id} is dropped, but is not swapped out")
        self.blocks_in_use -= self._blocks(tokens)

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self._block_size)
