"""The speed of the line: measured only while something waits, from enough, and lately."""

from __future__ import annotations

from gateway.line_speed import LEAST_BUSY_US, MEMORY_US, WINDOW_US, LineSpeed, LineSpeeds

TICK_US = 250_000


class Clock:
    now_us = 0

    def __call__(self) -> int:
        return self.now_us


class Line:
    """A speed, sampled every quarter of a second."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.speed = LineSpeed(clock=self.clock)

    def run(self, time_us: int, *, waiting: int, tokens_per_s: int, tokens_per_entry: int = 50) -> None:
        owed = 0
        for _ in range(time_us // TICK_US):
            self.speed.sample(waiting)
            owed += tokens_per_s * TICK_US // 1_000_000
            while owed >= tokens_per_entry:
                self.speed.note(tokens_per_entry)
                owed -= tokens_per_entry
            self.clock.now_us += TICK_US
        self.speed.sample(waiting)


def test_what_leaves_a_line_that_waits_is_its_speed() -> None:
    """A thousand tokens a second: a line of ten thousand takes ten."""
    line = Line()
    line.run(5_000_000, waiting=3, tokens_per_s=1000)
    assert line.speed.tokens_per_s() == 1000


def test_an_idle_cluster_is_not_a_slow_one() -> None:
    """Little was taken because little came: a burst must not be refused for it."""
    line = Line()
    line.run(10_000_000, waiting=0, tokens_per_s=200)
    assert line.speed.tokens_per_s() is None
    line.run(4_000_000, waiting=3, tokens_per_s=1000)
    line.run(30_000_000, waiting=0, tokens_per_s=200)
    assert line.speed.tokens_per_s() == 1000


def test_too_little_is_no_measurement() -> None:
    """Neither a moment nor a few entries tell how fast a line is."""
    line = Line()
    line.run(LEAST_BUSY_US - TICK_US, waiting=3, tokens_per_s=1000)
    assert line.speed.tokens_per_s() is None
    line.run(2 * TICK_US, waiting=3, tokens_per_s=1000)
    assert line.speed.tokens_per_s() is not None
    slow = Line()
    slow.run(5_000_000, waiting=3, tokens_per_s=1000, tokens_per_entry=2000)
    assert slow.speed.tokens_per_s() is None


def test_the_last_busy_seconds_count() -> None:
    """A cluster that has become slower must not go on promising."""
    line = Line()
    line.run(WINDOW_US, waiting=3, tokens_per_s=1000)
    line.run(WINDOW_US + TICK_US, waiting=3, tokens_per_s=200)
    assert line.speed.tokens_per_s() == 200


def test_what_was_measured_long_ago_is_forgotten() -> None:
    """Workers come and go."""
    line = Line()
    line.run(5_000_000, waiting=3, tokens_per_s=1000)
    line.clock.now_us += MEMORY_US - LEAST_BUSY_US - TICK_US
    assert line.speed.tokens_per_s() is not None
    line.clock.now_us += LEAST_BUSY_US
    assert line.speed.tokens_per_s() is None


def test_each_driver_of_a_model_measures_its_own_part() -> None:
    """And one that has ended measures nothing more."""
    clock = Clock()
    speeds = LineSpeeds(clock=clock)
    first, second, other = speeds.begin("m"), speeds.begin("m"), speeds.begin("n")
    for _ in range(20):
        for speed in (first, second, other):
            speed.note(100)
        speeds.sample("m", 1)
        speeds.sample("unknown", 1)
        clock.now_us += TICK_US
    assert first.tokens_per_s() == second.tokens_per_s() == 400
    assert other.tokens_per_s() is None
    speeds.end("m", second)
    speeds.end("m", first)
    speeds.sample("m", 1)


def test_time_in_which_nobody_could_take_anything_does_not_count() -> None:
    """The store was away: the workers have not become slower, and nobody must be refused for it."""
    clock = Clock()
    speeds = LineSpeeds(clock=clock)
    speed = speeds.begin("m")
    for second in range(20):
        speed.note(100)
        speeds.sample("m", 1)
        if second == 10:
            speeds.pause()
            clock.now_us += 10_000_000
        clock.now_us += TICK_US
    assert speed.tokens_per_s() == 400
