"""The table of transitions: what it has works, what it lacks raises and changes nothing."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest

from admission.lifecycle import TRANSITIONS, IllegalTransition, State
from admission.sequence import Sequence
from tests.admission.drive import make_spec

DOCUMENT = Path(__file__).parents[2] / "docs" / "scheduling.md"


def sequence_in(state: State) -> Sequence:
    sequence = Sequence.from_spec(make_spec("a"), number=0, claimed_us=0)
    sequence.state = state
    return sequence


@pytest.mark.parametrize(("old", "new"), list(product(State, State)))
def test_a_transition_happens_if_and_only_if_the_table_has_it(old: State, new: State) -> None:
    """A state that is entered by mistake frees or plans memory that is not there to be freed or planned."""
    sequence = sequence_in(old)
    if new in TRANSITIONS[old]:
        assert sequence.to(new) is old
        assert sequence.state is new
    else:
        with pytest.raises(IllegalTransition):
            sequence.to(new)
        assert sequence.state is old


def test_every_state_but_the_end_can_end() -> None:
    """Cancels, deadlines and lost workers come at any time."""
    assert [state for state in State if State.ENDED not in TRANSITIONS[state]] == [State.ENDED]


def test_the_diagram_in_the_documentation_is_the_table() -> None:
    """Readers trust the picture."""
    drawn = [line.strip() for line in DOCUMENT.read_text().splitlines() if " --> " in line and "[*]" not in line]
    assert drawn == [f"{old} --> {new}" for old, news in TRANSITIONS.items() for new in news]
