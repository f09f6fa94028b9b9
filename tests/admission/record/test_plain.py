"""Values go to plain data and come back, or are refused."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import msgpack
import pytest

from admission.record.entries import LogEntry
from admission.record.plain import PlainError, from_plain, to_plain
from tests.admission.record.doors import Door
from tests.admission.record.recorded import busy_recording


class Colour(StrEnum):
    RED = "red"


@dataclass(frozen=True, slots=True)
class Point:
    x: int
    y: int | None


@dataclass(frozen=True, slots=True)
class Line:
    points: tuple[Point, ...]
    colour: Colour | None


@dataclass(frozen=True, slots=True)
class Name:
    text: str


@dataclass(frozen=True, slots=True)
class Nothing:
    """As an event that has nothing to say but that it happened."""


Shape = Point | Line | Name | Nothing

VALUES: list[tuple[Any, Any]] = [
    (Shape, Point(0, None)),
    (Shape, Line((Point(1, 2), Point(0, 0)), Colour.RED)),
    (Shape, Line((), None)),
    (Shape, Name("")),
    (Shape, Nothing()),
    (Point | None, None),
    (tuple[int, str], (1, "a")),
    (tuple[int, ...], ()),
    (tuple[tuple[str, int], ...], (("a", 1),)),
    (tuple[Colour, int], (Colour.RED, 0)),
]


@pytest.mark.parametrize(("hint", "value"), VALUES)
def test_a_value_comes_back_from_msgpack(hint: object, value: object) -> None:
    """Empty and zero ones, too: those are easily taken for nothing."""
    packed = msgpack.packb(to_plain(hint, value))
    assert from_plain(hint, msgpack.unpackb(packed, use_list=False)) == value


def test_every_kind_of_record_comes_back() -> None:
    """Those of doors; those of drivers are read back in the tests of framing."""
    door = Door()
    door.offer("a", 10, shed=("b",))
    door.give("a", now=11, victims=("c",))
    door.give_back("a", now=12)
    door.settle("a", now=13)
    door.withdraw("a", 14)
    door.answer("a", 15, "completed", 200, client="me")
    for entry in [*door.entries, *busy_recording().segments[0]]:
        packed = msgpack.packb(to_plain(LogEntry, entry), use_bin_type=True)
        assert from_plain(LogEntry, msgpack.unpackb(packed, use_list=False)) == entry


@pytest.mark.parametrize(
    ("hint", "data"),
    [
        (int, "1"),
        (int, True),
        (Point, (1,)),
        (Point, [1, 2]),
        (Point, (1, "a")),
        (Shape, ()),
        (Shape, (3, 1, 2)),
        (Shape, ("0", 1, 2)),
        (Shape, (-1, "a")),
        (Colour, "green"),
        (tuple[int, ...], 7),
        (tuple[int, str], (1,)),
    ],
)
def test_data_of_another_type_is_refused(hint: object, data: object) -> None:
    """Nothing comes to life that is not expected in that place."""
    with pytest.raises(PlainError):
        from_plain(hint, data)


@pytest.mark.parametrize("hint", [dict[str, int], set[int], object])
def test_a_type_that_has_no_place_in_a_log_is_a_mistake_of_ours(hint: object) -> None:
    """Found when the first record of that kind is written, by any test."""
    with pytest.raises(TypeError, match="has no plain form"):
        to_plain(hint, None)
