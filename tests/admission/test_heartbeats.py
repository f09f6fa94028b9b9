"""Silence is judged by watching, never by a clock that others set."""

from __future__ import annotations

from admission.heartbeats import Heartbeats


def watcher() -> Heartbeats:
    return Heartbeats(lease_s=10.0, max_gap_s=4.0)


def test_a_driver_is_silent_after_a_whole_lease_without_a_beat() -> None:
    """Sooner would take work from the living, later would leave it with the dead."""
    heartbeats = watcher()
    for now_s in range(0, 10, 2):
        assert heartbeats.observe({"a": "1"}, now_s) == ()
    assert heartbeats.observe({"a": "1"}, 10.0) == ("a",)


def test_every_beat_starts_the_lease_anew() -> None:
    """A driver that speaks lives."""
    heartbeats = watcher()
    for now_s in range(0, 60, 2):
        assert heartbeats.observe({"a": str(now_s // 8)}, now_s) == ()


def test_a_gap_in_watching_starts_every_lease_anew() -> None:
    """After a freeze of Redis or of this process, nobody had the chance to speak."""
    heartbeats = watcher()
    heartbeats.observe({"a": "1"}, 0.0)
    assert heartbeats.observe({"a": "1"}, 100.0) == ()
    assert heartbeats.observe({"a": "1"}, 103.0) == ()


def test_a_driver_that_left_and_came_back_is_new() -> None:
    """Its old silence is not its own."""
    heartbeats = watcher()
    heartbeats.observe({"a": "1"}, 0.0)
    heartbeats.observe({}, 3.0)
    for now_s in (6.0, 9.0, 12.0):
        assert heartbeats.observe({"a": "1"}, now_s) == ()


def test_the_silent_are_named_in_order() -> None:
    """Whoever acts on them does so in the same order every time."""
    heartbeats = Heartbeats(lease_s=1.0, max_gap_s=4.0)
    heartbeats.observe({"b": "1", "c": "1", "a": "1"}, 0.0)
    assert heartbeats.observe({"b": "1", "c": "2", "a": "1"}, 1.0) == ("a", "b")
