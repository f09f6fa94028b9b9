"""The page's data stays within bounds, and names what it does not tell."""

from __future__ import annotations

import pytest

from admission.record.explain import Explanation
from gateway import trace_page
from gateway.trace_page import Numbered
from tests.admission.record.golden import golden_logs


def explained(name: str) -> tuple[str, Explanation, str, list[tuple[str, str]]]:
    explanation = Explanation(name=name, about=f"{name}: class batch", sequence_ids=(f"s-{name}",), sentences=())
    return f"s-{name}", explanation, "batch", [("0.1 s", "arrived")]


def test_lives_beyond_the_bound_are_left_out_but_not_their_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page of a whole day must still open."""
    monkeypatch.setattr(trace_page, "MOST_EXPLAINED", 1)
    rows = Numbered([explained("a"), explained("b")]).rows
    assert [(row["name"], len(row["lines"])) for row in rows] == [("a", 1), ("b", 0)]


def test_a_sequence_that_no_log_explains_gets_a_number_of_its_own() -> None:
    """Its bar is drawn all the same, under the id that it has."""
    sequences = Numbered([explained("a")])
    assert (sequences.of("s-a"), sequences.named("a"), sequences.named("x")) == (0, 0, None)
    assert sequences.of("unknown") == sequences.of("unknown") == 1
    assert sequences.rows[1]["name"] == "unknown"


def test_a_page_has_its_parts_in_place() -> None:
    """Style, data and both scripts; a mark in the data is not taken for one of the page's."""
    page = trace_page.page(golden_logs().picture(), Numbered([explained("/*JS*/")]), facts="facts").decode()
    assert page.index("<style>") < page.index(":root") < page.index('id="data"') < page.index('"use strict"')
    assert page.index('"use strict"') < page.index("function showTip")
    assert '"name":"/*JS*/"' in page
