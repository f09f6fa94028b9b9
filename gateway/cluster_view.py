"""What this gateway knows of the cluster now: the models, who serves them, whether Redis answers.

Kept up in the background, so that no request and no health check ever asks for it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from gateway.clock import Clock
from workers.wire import ModelCard

MOST_MODELS = 256
"""Models remembered by name after their last worker is gone, so that they are `no_worker` and not unknown."""


class ClusterView:
    """Models are *known* once seen, and *served* while the directory lists them or a driver here runs one."""

    def __init__(self, *, clock: Clock) -> None:
        self.store_reachable = False
        self._clock = clock
        self._cards: dict[str, ModelCard] = {}
        self._listed: frozenset[str] = frozenset()
        self._driven: Counter[str] = Counter()
        self._unserved_since_us: dict[str, int] = {}

    def cards(self) -> tuple[ModelCard, ...]:
        return tuple(self._cards.values())

    def card(self, model: str) -> ModelCard | None:
        return self._cards.get(model)

    def serves(self, model: str) -> bool:
        return self._driven[model] > 0 or model in self._listed

    def serves_any(self) -> bool:
        return any(self.serves(model) for model in self._cards)

    def unserved_for_us(self, model: str) -> int:
        """How long nobody has served ``model``; 0 while somebody does."""
        since_us = self._unserved_since_us.get(model)
        return 0 if since_us is None else self._clock() - since_us

    def list_models(self, cards: Iterable[ModelCard]) -> None:
        """What the directory says."""
        cards = tuple(cards)
        for card in cards:
            self._know(card)
        self._listed = frozenset([card.name for card in cards])
        self._note_unserved()

    def driver_began(self, card: ModelCard) -> None:
        self._know(card)
        self._driven[card.name] += 1
        self._note_unserved()

    def driver_ended(self, card: ModelCard) -> None:
        self._driven[card.name] -= 1
        self._note_unserved()

    def _know(self, card: ModelCard) -> None:
        if card.name in self._cards or len(self._cards) < MOST_MODELS:
            self._cards[card.name] = card

    def _note_unserved(self) -> None:
        for model in self._cards:
            if self.serves(model):
                self._unserved_since_us.pop(model, None)
            else:
                self._unserved_since_us.setdefault(model, self._clock())
