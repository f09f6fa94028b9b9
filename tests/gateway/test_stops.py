"""Stop strings, however tokens cut the text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.stops import StopMatcher, StopText


def run(stops: list[str], parts: list[str], stop_text: StopText = StopText.LEFT_OUT) -> tuple[str, str | None]:
    """The text that is shown, and the stop string that ended it."""
    matcher = StopMatcher(stops, stop_text)
    shown = ""
    for part in parts:
        shown += matcher.feed(part)
        if matcher.found is not None:
            return shown, matcher.found
    return shown + matcher.flush(), matcher.found


def cut(text: str, places: list[int]) -> list[str]:
    edges = sorted({place % (len(text) + 1) for place in places})
    return [text[start:end] for start, end in zip([0, *edges], [*edges, len(text)], strict=True)]


def whole(stops: list[str], text: str, stop_text: StopText) -> tuple[str, str | None]:
    """The rule, said on the whole text: the leftmost, of several there the shortest."""
    found = min(((text.find(stop), len(stop), stop) for stop in stops if stop in text), default=None)
    if found is None:
        return text, None
    start, length, stop = found
    return text[: start + length if stop_text is StopText.INCLUDED else start], stop


@given(
    stops=st.lists(st.text("abc", min_size=1, max_size=4), max_size=4),
    text=st.text("abc", max_size=30),
    places=st.lists(st.integers(0, 30), max_size=10),
    stop_text=st.sampled_from(StopText),
)
def test_any_cut_of_the_text_gives_what_the_whole_gives(
    stops: list[str], text: str, places: list[int], stop_text: StopText
) -> None:
    """Tokens cut text at random; a stop string must not be missed nor half shown because of where."""
    assert run(stops, cut(text, places), stop_text) == whole(stops, text, stop_text)


@pytest.mark.parametrize(
    ("stops", "parts", "shown", "found"),
    [
        (["DEFGHIJ"], ["ABC", "DEF", "G", "HI", "J", "K"], "ABC", "DEFGHIJ"),
        (["\nUser:"], ["Sure.", "\nUser", ":", " next"], "Sure.", "\nUser:"),
        (["abcd", "bc"], ["xa", "b", "c", "d"], "x", "abcd"),
        (["later", "early"], ["an early and a later one"], "an ", "early"),
        (["🌶️b"], ["a🌶", "\ufe0f", "b"], "a", "🌶️b"),
        (["ab", "abc"], ["xabc"], "x", "ab"),
    ],
)
def test_the_leftmost_stop_string_ends_the_text(stops: list[str], parts: list[str], shown: str, found: str) -> None:
    """B04: nothing of a stop string appears, and nothing before it is lost; with it, nothing behind it appears."""
    assert run(stops, parts) == (shown, found)
    assert run(stops, parts, StopText.INCLUDED) == (shown + found, found)


def test_text_that_only_began_like_a_stop_string_comes_out_at_the_end() -> None:
    """Withholding must never eat text."""
    assert run(["END"], ["the ", "EN"]) == ("the EN", None)


def test_text_is_not_withheld_longer_than_needed() -> None:
    """A stop string that is not beginning must not delay the stream."""
    matcher = StopMatcher(["END"])
    assert matcher.feed("plain text") == "plain text"
    assert matcher.feed("E") == ""
    assert matcher.feed("x") == "Ex"


def test_after_a_stop_nothing_more_comes_out() -> None:
    """Tokens already under way when the stop was found are dropped."""
    matcher = StopMatcher(["."])
    assert matcher.feed("a.b") == "a"
    assert (matcher.feed("c"), matcher.flush()) == ("", "")
