"""Log-probabilities in runs: cut, joined and taken apart, they stay beside their tokens."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.dispatch import TokenLogprob
from gateway.scores import between, is_whole, joined, num_values, since, token_logprobs, values_of
from workers.wire import Delivery, PromptNews, Scores


def run_of(tokens: range, width: int) -> Scores:
    """Scores that tell of which token each is."""
    return Scores(
        own=tuple(-float(token) for token in tokens),
        top_ids=tuple(100 * token + place for token in tokens for place in range(width)),
        top=tuple(-float(100 * token + place) for token in tokens for place in range(width)),
    )


@given(length=st.integers(0, 6), width=st.integers(0, 3), cuts=st.lists(st.integers(0, 6), max_size=3))
def test_cut_anywhere_and_joined_they_are_the_same(length: int, width: int, cuts: list[int]) -> None:
    """Reports, deliveries and repetitions cut them at different places."""
    whole = run_of(range(length), width)
    places = [0, *sorted(min(cut, length) for cut in cuts), length]
    parts = [between(whole, start, stop) for start, stop in itertools.pairwise(places)]
    assert joined(parts) == whole
    assert token_logprobs(parts) == token_logprobs([whole])
    assert sum(num_values(part) for part in parts) == num_values(whole) == length * (1 + width)


def test_each_token_gets_its_own_and_the_likeliest_beside_it() -> None:
    """Flat on the wire, values where they are read."""
    assert token_logprobs([run_of(range(2, 4), 2), run_of(range(4, 5), 2)]) == tuple(
        TokenLogprob(own=-float(token), top=((100 * token, -100.0 * token), (100 * token + 1, -100.0 * token - 1)))
        for token in (2, 3, 4)
    )
    assert since(run_of(range(5), 2), 3) == run_of(range(3, 5), 2)


@pytest.mark.parametrize(
    "wrong",
    [
        Scores(own=(), top_ids=(), top=()),
        Scores(own=(-1.0,), top_ids=(1,), top=()),
        Scores(own=(-1.0, -2.0), top_ids=(1, 2, 3), top=(-1.0, -2.0, -3.0)),
    ],
)
def test_what_does_not_fit_each_other_is_known(wrong: Scores) -> None:
    """A worker's numbers would stand beside other tokens than theirs."""
    assert not is_whole(wrong)
    assert is_whole(run_of(range(3), 0))
    assert is_whole(run_of(range(3), 4))


def test_a_delivery_counts_what_it_brings() -> None:
    """Bounds on memory and messages go by it."""
    plain = Delivery(sequence_id="a", position=0, token_ids=(1,), finish="", error="")
    news = PromptNews(cached_tokens=1)
    full = PromptNews(start=1, scores=run_of(range(3), 1))
    assert values_of(plain) == 0
    assert values_of(plain._replace(prompt=news)) == 0
    assert values_of(plain._replace(prompt=full, scores=run_of(range(1), 2))) == 9
