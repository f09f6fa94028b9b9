"""The page that shows a run: one file of HTML with all that it needs in it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from typing import Any

import orjson

from admission.record.explain import Explanation
from admission.record.picture import DriverPicture, Picture

MOST_EXPLAINED = 5_000
"""Requests whose life is told in the page; each takes about a kilobyte. Of the others it says what they asked for."""


class Numbered:
    """Sequences by number, as the page knows them."""

    def __init__(self, explanations: Iterable[tuple[str, Explanation, str, Sequence[tuple[str, str]]]]) -> None:
        """(id, explanation, class, lines as time and text) of each sequence."""
        self.rows: list[dict[str, Any]] = []
        self._numbers: dict[str, int] = {}
        for sequence_id, explanation, class_name, lines in explanations:
            self._numbers[sequence_id] = len(self.rows)
            shown = lines if len(self.rows) < MOST_EXPLAINED else ()
            self.rows.append(
                {
                    "id": sequence_id,
                    "name": explanation.name,
                    "class": class_name,
                    "about": explanation.about,
                    "lines": shown,
                }
            )
        self._by_name = {row["name"]: number for number, row in enumerate(self.rows)}

    def of(self, sequence_id: str) -> int:
        number = self._numbers.get(sequence_id)
        if number is None:
            number = self._numbers[sequence_id] = len(self.rows)
            self.rows.append({"id": sequence_id, "name": sequence_id, "class": "", "about": sequence_id, "lines": ()})
        return number

    def named(self, name: str) -> int | None:
        return self._by_name.get(name)


def page(picture: Picture, sequences: Numbered, *, facts: str) -> bytes:
    """The file."""
    document = _part("trace.html")
    # "</script" would end the element, "<!--<script" keep it open beyond its end. In JSON "<" stands in strings only.
    data = orjson.dumps(_data(picture, sequences, facts)).decode().replace("<", "\\u003c")
    script = _part("trace.js") + "\n" + _part("trace_pointer.js")
    for mark, text in {"/*CSS*/": _part("trace.css"), "/*JS*/": script, "/*DATA*/": data}.items():
        document = document.replace(mark, text, 1)
    return document.encode()


def _part(name: str) -> str:
    return (files("gateway") / "pages" / name).read_text()


def _data(picture: Picture, sequences: Numbered, facts: str) -> Mapping[str, Any]:
    drivers = [_driver(driver, sequences) for driver in picture.drivers]
    waits = [(sequences.of(wait.sequence_id), wait.begins, wait.ends) for wait in picture.waits]
    rejections = [(mark.at, mark.name, mark.text, sequences.named(mark.name)) for mark in picture.rejections]
    return {
        "unit": picture.unit.value,
        "ends": picture.ends,
        "facts": facts,
        "bound": picture.queue_bound,
        "drivers": drivers,
        "waits": waits,
        "rejections": rejections,
        "sequences": sequences.rows,
        "classes": sorted({row["class"] for row in sequences.rows if row["class"]}),
    }


def _driver(driver: DriverPicture, sequences: Numbered) -> Mapping[str, Any]:
    return {
        "name": driver.driver_id,
        "model": driver.model,
        "preset": driver.preset,
        "slots": driver.max_slots,
        "budget": driver.token_budget,
        "kv": driver.kv_total,
        "bars": [
            (
                bar.slot,
                bar.begins,
                bar.ends,
                sequences.of(bar.sequence_id),
                bar.part.value,
                bar.tokens,
                bar.first,
                bar.last,
            )
            for bar in driver.bars
        ],
        "levels": [
            (
                level.iteration,
                level.begins,
                level.ends,
                level.decode,
                level.prefill,
                level.unused_budget,
                level.slots,
                level.kv_blocks,
            )
            for level in driver.levels
        ],
        "preemptions": [(mark.at, mark.slot, sequences.of(mark.name), mark.text) for mark in driver.preemptions],
    }
