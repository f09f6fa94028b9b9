"""The garbage collector of a gateway."""

from __future__ import annotations

import subprocess
import sys

CODE = """
import gc
from gateway.collector import YOUNG_OBJECTS, relieve_collector
relieve_collector()
print(gc.get_freeze_count() > 0, gc.isenabled(), gc.get_threshold()[0] == YOUNG_OBJECTS)
"""


def test_what_was_imported_is_left_alone_and_cycles_are_still_found() -> None:
    """The collector is relieved, not switched off: a cycle that nobody collects is a leak."""
    result = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, timeout=60, check=True)
    assert result.stdout.split() == ["True"] * 3
