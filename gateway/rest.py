"""When a driver has been idle for a while: the time for what is too dear while something runs.

Checking a scheduler's books is a pass over every KV block, milliseconds for a large pool. Between two requests of a
lone client a driver is idle too, and the second must not wait for that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

LONG_S = 1.0
"""A rest that is long. Whoever is still asking has asked again by then."""


class Rest:
    """``stir`` is called when a rest has become long; the turn that it brings asks ``is_long``."""

    def __init__(self, stir: Callable[[], None]) -> None:
        self._stir = stir
        self._timer: asyncio.TimerHandle | None = None
        self._has_run = False
        self._is_long = False

    def is_long(self, *, slots_in_use: int) -> bool:
        """Whether it has just become so: true once for each rest."""
        if slots_in_use > 0:
            self._has_run = True
            self.end()
        elif self._is_long:
            self._is_long = False
            return True
        elif self._has_run:
            self._has_run = False
            self._timer = asyncio.get_running_loop().call_later(LONG_S, self._become_long)
        return False

    def end(self) -> None:
        """Nothing is to come of this rest."""
        self._is_long = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _become_long(self) -> None:
        self._timer = None
        self._is_long = True
        self._stir()
