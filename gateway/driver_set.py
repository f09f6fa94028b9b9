"""The drivers that run in this gateway now, for those who speak to all of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Cancellable(Protocol):
    """What an origin may ask of a driver."""

    def runs(self, sequence_id: str) -> bool:
        """Whether the sequence is in its hands: claimed or running, not returned to the store."""
        ...

    def cancel(self, sequence_ids: Sequence[str]) -> None:
        """Nobody wants these any more; unknown ids may be claims on their way."""
        ...

    def cancel_origin(self, origin: str) -> None:
        """Nobody wants anything that was made for ``origin``."""
        ...


class DriverSet:
    """Drivers by id. An origin names no driver when it cancels, so each cancel goes to all."""

    def __init__(self) -> None:
        self._drivers: dict[str, Cancellable] = {}

    def __len__(self) -> int:
        return len(self._drivers)

    def add(self, driver_id: str, driver: Cancellable) -> None:
        self._drivers[driver_id] = driver

    def remove(self, driver_id: str) -> None:
        self._drivers.pop(driver_id, None)

    def runs(self, sequence_id: str) -> bool:
        return any(driver.runs(sequence_id) for driver in self._drivers.values())

    def cancel(self, sequence_ids: Sequence[str]) -> None:
        for driver in self._drivers.values():
            driver.cancel(sequence_ids)

    def cancel_origin(self, origin: str) -> None:
        for driver in self._drivers.values():
            driver.cancel_origin(origin)
