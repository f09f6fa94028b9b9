"""A scheduler's state goes to bytes and back. That it then decides the same is the stateful tests' matter."""

from __future__ import annotations

import msgpack
import pytest

from admission.presets import PRESETS
from admission.record.snapshot import SnapshotError, freeze, thaw
from admission.scheduler import Scheduler
from tests.admission.record.recorded import LIMITS, Recording, busy_recording


def busy_scheduler() -> Scheduler:
    """In the middle: running, draining, claimed, plans in flight."""
    recording = Recording()
    for number in range(5):
        recording.claim(f"s{number}", prompt=6, output=6, rank=number % 3)
    recording.report()
    recording.cancel("s1")
    return recording.scheduler


@pytest.mark.parametrize("name", list(PRESETS))
def test_every_preset_has_a_state(name: str) -> None:
    """Each brings rules of its own, which are functions."""
    scheduler = thaw(freeze(Scheduler(LIMITS, PRESETS[name])))
    assert scheduler.preset == PRESETS[name]


def test_the_state_of_what_was_thawed_is_the_same() -> None:
    """To the byte: replay compares states so."""
    state = freeze(busy_scheduler())
    assert freeze(thaw(state)) == state


def test_freezing_changes_nothing() -> None:
    """It is done in the middle of serving."""
    scheduler = busy_scheduler()
    assert freeze(scheduler) == freeze(scheduler)
    scheduler.check()


def test_what_was_thawed_is_apart_from_what_was_frozen() -> None:
    """A replay must not move the scheduler that serves."""
    recording = busy_recording()
    state = freeze(recording.scheduler)
    thaw(state).step((), 10_000_000)
    assert freeze(recording.scheduler) == state


def test_a_state_of_another_version_is_refused() -> None:
    """An attribute that is not there any more, or is new: to guess would be to replay something else."""
    kind, name, names, values = msgpack.unpackb(freeze(Scheduler(LIMITS, PRESETS["sluicegate"])))
    for other in (names[:-1], [*names[:-1], "_of_tomorrow"]):
        with pytest.raises(SnapshotError):
            thaw(msgpack.packb([kind, name, other, values[: len(other)]]))


def test_nothing_but_a_scheduler_comes_to_life() -> None:
    """A log may come from anywhere."""
    for data in (["object", "Popen", [], []], ["rule", "system"], ["enum", "Nothing", 1], ["list", 1], ["nonsense", 1]):
        with pytest.raises(SnapshotError):
            thaw(msgpack.packb(data))


def test_a_part_that_has_no_place_in_a_state_is_found() -> None:
    """Whoever gives the scheduler a new kind of part hears it here, and not from a log that cannot be read."""
    scheduler = busy_scheduler()
    scheduler._outbox._ended.append(object())  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="object, which has no place in it"):
        freeze(scheduler)
