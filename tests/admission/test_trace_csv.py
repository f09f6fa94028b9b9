"""Arrival traces in CSV: what is read, and what is refused with the line and the column."""

from __future__ import annotations

import pytest

from admission.classes import BATCH, INTERACTIVE, STANDARD
from admission.trace_csv import TraceError, parse_trace

HEADER = "arrival_s,prompt_tokens,output_tokens"


def test_rows_become_arrivals_in_microseconds() -> None:
    """Seconds are how people write traces; the scheduler counts whole microseconds."""
    (first, second) = parse_trace(f"{HEADER}\n0,374,44\n4.314579,396,109\n").arrivals
    assert (first.request_id, first.arrival_us, first.prompt_tokens, first.output_tokens) == ("r1", 0, 374, 44)
    assert second.arrival_us == 4_314_579


def test_columns_are_found_by_name_and_others_are_named_in_a_note() -> None:
    """Public traces have columns of their own, in orders of their own."""
    found = parse_trace("output_tokens,hits,tenant,prompt_tokens,priority,arrival_s\n5,1,acme,9,high,2\n")
    (arrival,) = found.arrivals
    assert (arrival.prompt_tokens, arrival.output_tokens, arrival.tenant, arrival.cls) == (9, 5, "acme", INTERACTIVE)
    assert found.notes == ("ignored columns: hits",)


def test_priorities_are_class_names_or_those_of_scenarios() -> None:
    """One file may serve both kinds of input."""
    rows = "".join(f"0,1,1,{name}\n" for name in ("interactive", "standard", "batch", "high", "normal"))
    classes = [arrival.cls for arrival in parse_trace(f"{HEADER},priority\n{rows}").arrivals]
    assert classes == [INTERACTIVE, STANDARD, BATCH, INTERACTIVE, STANDARD]


def test_rows_out_of_order_are_run_by_arrival_and_equal_ones_by_row() -> None:
    """Traces put together from several servers are not sorted; it must not matter."""
    found = parse_trace(f"{HEADER}\n2,1,1\n1,1,1\n2,2,2\n")
    assert [arrival.request_id for arrival in found.in_order()] == ["r2", "r1", "r3"]
    assert "order" in found.notes[0]


def test_a_byte_order_mark_and_blank_lines_do_no_harm() -> None:
    """Spreadsheets write the one, people the other."""
    assert len(parse_trace(f"\ufeff{HEADER}\r\n\r\n0,1,1\r\n\r\n").arrivals) == 1


def test_a_last_line_without_an_end_is_read_and_noted() -> None:
    """It is valid CSV, and the one sign of a file that was cut off within a number."""
    found = parse_trace(f"{HEADER}\n0,1,12")
    assert found.arrivals[0].output_tokens == 12
    assert "cut off" in found.notes[0]


def test_lengths_alone_have_no_times_until_they_are_given() -> None:
    """Whoever runs them says when they arrive."""
    found = parse_trace("prompt_tokens,output_tokens\n1,2\n3,4\n")
    assert not found.has_times
    assert [arrival.arrival_us for arrival in found.at([5, 7]).arrivals] == [5, 7]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "empty"),
        ("\n\n", "empty"),
        (f"{HEADER}\n", "no rows"),
        ("arrival_s,prompt_tokens\n0,1\n", "line 1: the header lacks the column output_tokens"),
        (f"{HEADER},arrival_s\n0,1,1,1\n", "line 1: the column arrival_s is there twice"),
        (f"{HEADER}\n0,1,1\n0,1\n", "line 3: 2 columns where the header has 3"),
        (f"{HEADER}\n0,1,1,1\n", "line 2: 4 columns"),
        (f"{HEADER}\n0,0,1\n", "line 2: prompt_tokens must be at least 1, not '0'"),
        (f"{HEADER}\n0,1,-3\n", "line 2: output_tokens must be at least 1, not '-3'"),
        (f"{HEADER}\n0,1.5,1\n", "line 2: prompt_tokens must be a whole number, not '1.5'"),
        (f"{HEADER}\n0,,1\n", "line 2: prompt_tokens must be a whole number, not ''"),
        (f"{HEADER}\n0,²,1\n", "line 2: prompt_tokens must be a whole number"),
        (f"{HEADER}\n0,99999999,1\n", "line 2: prompt_tokens must be at most 10000000"),
        (f"{HEADER}\n0,{'9' * 5000},1\n", "line 2: prompt_tokens must be at most 10000000"),
        (f"{HEADER}\n-1,1,1\n", "line 2: arrival_s must be between 0 and"),
        (f"{HEADER}\nnan,1,1\n", "line 2: arrival_s must be a number of seconds, not 'nan'"),
        (f"{HEADER}\n1e99,1,1\n", "line 2: arrival_s must be between 0 and"),
        (f"{HEADER},priority\n0,1,1,urgent\n", "line 2: priority must be one of interactive, "),
        (f"{HEADER},priority\n0,1,1,1\n", "line 2: priority must be one of"),
        (f'{HEADER}\n0,1,"1\n', "line 2: not valid CSV"),
        (f"{HEADER},tenant\n0,1,1,{'x' * 129}\n", "line 2: tenant must have at most 128"),
    ],
)
def test_anything_else_is_refused_with_its_line_and_column(text: str, complaint: str) -> None:
    """A trace of a million rows is not searched by eye."""
    with pytest.raises(TraceError) as refused:
        parse_trace(text)
    assert complaint in str(refused.value)
    assert "\n" not in str(refused.value)
