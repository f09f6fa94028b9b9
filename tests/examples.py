"""How many examples a generated test tries: all of them in `make test`, a fifth in `make check`.

`make check` asks for the profile ``quick`` with ``--hypothesis-profile``. Nothing but the number differs.
"""

from __future__ import annotations

from hypothesis import settings

QUICK = "quick"
"""The profile's name, as the Makefile has it."""

_FULL = settings.get_profile("default").max_examples

settings.register_profile(QUICK, max_examples=_FULL // 5)


def examples(full: int) -> int:
    """Of the ``full`` number of examples that a test tries, how many this run tries: for ``settings`` of its own."""
    return max(1, full * settings.default.max_examples // _FULL)
