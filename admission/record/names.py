"""What sequences are called: by the request that clients know, where the doors tell it."""

from __future__ import annotations

from collections.abc import Sequence

from admission.record.entries import Answered, LogEntry, OfferMade

ANSWER_PREFIXES = ("chatcmpl-", "cmpl-")
"""What the id of an answer has before the id of its request."""

MOST_NAMES = 3
"""Of others that are named in a sentence; the rest are counted."""


class Names:
    """Knows every offer. A request that went on elsewhere has several sequences of the same choice."""

    def __init__(self, doors: Sequence[Sequence[LogEntry]]) -> None:
        offers = [entry for door in doors for entry in door if isinstance(entry, OfferMade)]
        offers.sort(key=lambda offer: offer.act)
        self._offers = {offer.sequence_id: offer for offer in reversed(offers)}  # the first, if it was repeated
        self._sequences: dict[str, dict[int, dict[str, None]]] = {}
        for offer in offers:
            choices = self._sequences.setdefault(offer.request_id, {})
            choices.setdefault(offer.choice, {})[offer.sequence_id] = None
        self._own_ids: dict[str, dict[str, None]] = {}
        for answer in [entry for door in doors for entry in door if isinstance(entry, Answered)]:
            if answer.client_request_id is not None:
                self._own_ids.setdefault(answer.client_request_id, {})[answer.request_id] = None

    def requests(self, asked: str) -> list[str]:
        """The requests that a client may mean: by our id, its own, or the id of the answer, which ends in ours."""
        if asked in self._own_ids:
            return list(self._own_ids[asked])
        if asked in self._sequences:
            return [asked]
        return [next((asked.removeprefix(prefix) for prefix in ANSWER_PREFIXES if asked.startswith(prefix)), asked)]

    def offered(self) -> list[str]:
        """Every sequence, in the order of their offers."""
        return list(reversed(self._offers))

    def offer(self, sequence_id: str) -> OfferMade | None:
        return self._offers.get(sequence_id)

    def choices_of(self, request_id: str) -> list[list[str]]:
        """The sequences of each choice of a request."""
        choices = self._sequences.get(request_id, {})
        return [list(choices[choice]) for choice in sorted(choices)]

    def is_first(self, offer: OfferMade) -> bool:
        """Whether no sequence of the same choice was offered before."""
        return next(iter(self._sequences[offer.request_id][offer.choice])) == offer.sequence_id

    def of(self, sequence_id: str) -> str:
        offer = self._offers.get(sequence_id)
        if offer is None:
            return sequence_id
        is_alone = len(self._sequences[offer.request_id]) == 1
        return offer.request_id if is_alone else f"{offer.request_id} (choice {offer.choice})"

    def with_class(self, sequence_id: str) -> str:
        offer = self._offers.get(sequence_id)
        return self.of(sequence_id) if offer is None else f"{self.of(sequence_id)} ({offer.class_name})"

    def several(self, sequence_ids: Sequence[str], count: int) -> str:
        """``A, B and 3 others``: of ``count``, of whom the first are known. There is at least one."""
        shown = [self.of(name) for name in sequence_ids[:MOST_NAMES]]
        left = count - len(shown)
        if left == 1:
            shown.append(self.of(sequence_ids[MOST_NAMES]))
        elif left > 1:
            shown.append(f"{left} others")
        return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"
