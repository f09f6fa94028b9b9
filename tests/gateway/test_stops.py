import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.stops import StopMatcher


def run(stops: list[str], parts: list[str]) -> tuple[str, bool]:
    matcher = StopMatcher(stops)
    shown = ""
    for part in parts:
        shown += matcher.feed(part)
        if matcher.stopped:
            return shown, True
    return shown + matcher.flush(), matcher.stopped


def cut(text: str, places: list[int]) -> list[str]:
    edges = sorted({place % (len(text) + 1) for place in places})
    return [text[start:end] for start, end in zip([0, *edges], [*edges, len(text)], strict=True)]


def whole(stops: list[str], text: str) -> tuple[str, bool]:
    """The rule, said on the whole text."""
    starts = [text.find(stop) for stop in stops if stop in text]
    return (text[: min(starts)], True) if starts else (text, False)


@given(
    stops=st.lists(st.text("abc", min_size=1, max_size=4), max_size=4),
    text=st.text("abc", max_size=30),
    places=st.lists(st.integers(0, 30), max_size=10),
)
def test_any_cut_of_the_text_gives_what_the_whole_gives(stops: list[str], text: str, places: list[int]) -> None:
    """Tokens cut text at random; a stop string must not be missed nor half shown because of where."""
    assert run(stops, cut(text, places)) == whole(stops, text)


@pytest.mark.parametrize(
    ("stops", "parts", "shown"),
    [
        (["DEFGHIJ"], ["ABC", "DEF", "G", "HI", "J", "K"], "ABC"),
        (["\nUser:"], ["Sure.", "\nUser", ":", " next"], "Sure."),
        (["abcd", "bc"], ["xa", "b", "c", "d"], "x"),
        (["later", "early"], ["an early and a later one"], "an "),
        (["🌶️b"], ["a🌶", "\ufe0f", "b"], "a"),
    ],
)
def test_the_leftmost_stop_string_ends_the_text(stops: list[str], parts: list[str], shown: str) -> None:
    """Nothing of a stop string appears, and nothing before it is lost."""
    assert run(stops, parts) == (shown, True)


def test_text_that_only_began_like_a_stop_string_comes_out_at_the_end() -> None:
    """Withholding must never eat text."""
    assert run(["END"], ["the ", "EN"]) == ("the EN", False)


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
