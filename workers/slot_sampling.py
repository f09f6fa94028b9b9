"""What the sampler has to know of each slot, kept beside the slots so that the common step costs no thought per
sequence.

Most sequences want their best token and nothing else: they appear in none of the tables here.
"""

from __future__ import annotations

from collections.abc import Sequence

from workers.chooser import BadSampling, Chooser, Draw, check_sampling, needs_chooser
from workers.slots import SlotState, Work


class SlotSampling:
    """By slot: how it chooses, and whether its parameters can be used at all."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._choosers: dict[int, Chooser] = {}
        self._unusable: set[int] = set()

    def reset(self) -> None:
        self._choosers.clear()
        self._unusable.clear()

    def start(self, state: SlotState) -> None:
        """A sequence has taken its slot: what the last one there left is gone."""
        sampling = state.sampling
        self._choosers.pop(state.slot, None)
        self._unusable.discard(state.slot)
        try:
            check_sampling(sampling, self._vocab_size)
        except BadSampling:
            self._unusable.add(state.slot)
            return
        if needs_chooser(sampling):
            self._choosers[state.slot] = Chooser(
                sampling,
                prompt=state.prompt,
                output=state.tokens[state.prompt_length :],
                ending_ids=state.ending_ids,
                vocab_size=self._vocab_size,
            )

    def is_usable(self, slot: int) -> bool:
        return slot not in self._unusable

    def any_draws(self, emitting: Sequence[Work]) -> bool:
        """Whether any of them does more than take its best token."""
        return bool(self._choosers) and any(work.state.slot in self._choosers for work in emitting)

    def looks_back(self, slot: int) -> bool:
        """Whether its next choice depends on which tokens came before, and not only on how many."""
        chooser = self._choosers.get(slot)
        return chooser is not None and chooser.looks_back

    def draws(self, emitting: Sequence[Work]) -> dict[int, Draw]:
        """By index into ``emitting``: how those choose that do not just take their best token."""
        if not self._choosers:
            return {}
        choosers = self._choosers
        return {
            row: choosers[work.state.slot].draw(work.state.emitted)
            for row, work in enumerate(emitting)
            if work.state.slot in choosers
        }

    def note(self, slot: int, token: int) -> None:
        """The sequence in ``slot`` has emitted this token."""
        chooser = self._choosers.get(slot)
        if chooser is not None:
            chooser.note(token)
