"""The garbage collector, as a process wants it that makes many small objects and keeps few."""

from __future__ import annotations

import gc

YOUNG_OBJECTS = 50_000
"""Containers that may be made, and not freed, before the collector looks for cycles among them.

Python's 700 are made several times in one iteration of a full batch, where they all live to its end: at 512 streams an
eighth of the gateway's CPU went into looking at them. What a cycle keeps alive for longer is some ten megabytes.
"""


def relieve_collector() -> None:
    """Call it when everything is imported and nothing runs yet: what is there then is never looked at again."""
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS)
