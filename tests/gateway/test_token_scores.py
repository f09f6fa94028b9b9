"""Log-probabilities that come out with the text of their tokens."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.token_scores import Score, ScoreQueue, prompt_scores
from tests.gateway.fakes import score


def add(queue: ScoreQueue, token_id: int, num_chars: int) -> None:
    queue.add(token_id, score(token_id, 0), num_chars)


def ids(scores: list[Score]) -> list[int]:
    return [told.token_id for told in scores]


def test_a_score_comes_out_with_the_last_of_its_text() -> None:
    """A client that shows both must never see a token before its text."""
    queue = ScoreQueue()
    add(queue, 1, 3)
    assert ids(queue.release(2)) == []
    assert ids(queue.release(1)) == [1]


def test_tokens_of_half_a_character_come_out_with_the_whole_one() -> None:
    """Their text is that character, and they begin where it does."""
    queue = ScoreQueue(offset=5)
    for token_id, num_chars in ((1, 1), (2, 0), (3, 0), (4, 1)):
        add(queue, token_id, num_chars)
    assert ids(queue.release(1)) == [1]
    released = queue.release(1)
    assert [(told.token_id, told.offset) for told in released] == [(2, 6), (3, 6), (4, 6)]


def test_what_never_gets_text_comes_out_at_the_end() -> None:
    """Special tokens, and those of a stop string."""
    queue = ScoreQueue()
    add(queue, 1, 3)
    add(queue, 2, 0)
    assert ids(queue.release(1)) == []
    assert ids(queue.flush()) == [1, 2]
    assert queue.flush() == []


@given(st.lists(st.integers(0, 3), max_size=12), st.lists(st.integers(0, 4), max_size=12))
def test_none_is_lost_and_none_comes_twice(lengths: list[int], shown: list[int]) -> None:
    """In order, however text is withheld."""
    queue = ScoreQueue()
    released: list[Score] = []
    left = 0
    for token_id, num_chars in enumerate(lengths):
        add(queue, token_id, num_chars)
        left += num_chars
        out = min(left, shown[token_id] if token_id < len(shown) else 0)
        released += queue.release(out)
        left -= out
    released += queue.flush()
    assert ids(released) == list(range(len(lengths)))


def test_nothing_predicts_the_first_token_of_a_prompt() -> None:
    """So it has no number."""
    first, second = prompt_scores((7, 8), (0, 2), (score(8, 0),))
    assert (first.logprob, second.logprob, second.offset) == (None, score(8, 0), 2)
