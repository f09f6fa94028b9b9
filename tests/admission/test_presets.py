"""Presets are values, found by name."""

from __future__ import annotations

import pytest

from admission.presets import PRESETS, preset


def test_each_preset_is_known_by_its_own_name() -> None:
    """Flags, traces and documentation use the names."""
    assert [preset(name).name for name in PRESETS] == list(PRESETS)


def test_an_unknown_preset_names_the_known_ones() -> None:
    """The message is what an operator sees."""
    with pytest.raises(ValueError, match=r"'orka'.*tutorial, sluicegate"):
        preset("orka")
