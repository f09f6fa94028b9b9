"""The journal of a link: whatever the origin may lack can be said again."""

from __future__ import annotations

from gateway.journal import KEEP_FINISHED_US, MOST_FINISHED, MOST_FINISHED_VALUES, SCORED_AT_ONCE, Journal
from workers.wire import Delivery, PromptNews, Scores


def part(position: int, *token_ids: int, finish: str = "", sequence_id: str = "a") -> Delivery:
    return Delivery(sequence_id=sequence_id, position=position, token_ids=token_ids, finish=finish, error="")


def scores(*token_ids: int) -> Scores:
    """Those of ``token_ids``, with the likeliest two beside each."""
    return Scores(
        own=tuple(-float(token) for token in token_ids),
        top_ids=tuple(number for token in token_ids for number in (token, token + 1)),
        top=tuple(-value for token in token_ids for value in (float(token), token + 0.5)),
    )


def scored(delivery: Delivery) -> Delivery:
    return delivery._replace(scores=scores(*delivery.token_ids))


class Clock:
    now_us = 0

    def __call__(self) -> int:
        return self.now_us


def test_replay_says_everything_of_an_unfinished_sequence_at_once() -> None:
    """After a reconnect one message repairs whatever was lost."""
    journal = Journal(clock=Clock())
    for position in range(3):
        journal.add("g/w", part(position, 10 + position))
    assert list(journal.replay()) == [("g/w", part(0, 10, 11, 12))]


def test_a_finished_sequence_is_kept_for_a_while() -> None:
    """Its last message may have been in the connection that broke."""
    clock = Clock()
    journal = Journal(clock=clock)
    journal.add("g/w", part(0, 1))
    journal.add("g/w", part(1, 2, finish="length"))
    assert not journal.is_empty()
    assert list(journal.replay()) == [("g/w", part(0, 1, 2, finish="length"))]
    clock.now_us = KEEP_FINISHED_US + 1
    assert list(journal.replay()) == []
    assert journal.is_empty()


def test_the_stop_id_that_ended_a_sequence_is_said_again() -> None:
    """With the end, and only with it."""
    journal = Journal(clock=Clock())
    journal.add("g/w", part(0, 1))
    journal.add("g/w", part(1, finish="stop")._replace(stop_id=7))
    assert list(journal.replay()) == [("g/w", part(0, 1, finish="stop")._replace(stop_id=7))]


def test_finished_sequences_are_bounded_in_number() -> None:
    """A busy link must not keep half a minute of everything."""
    journal = Journal(clock=Clock())
    for number in range(MOST_FINISHED + 10):
        journal.add("g/w", part(0, 1, finish="stop", sequence_id=str(number)))
    assert len(list(journal.replay())) == MOST_FINISHED


def test_a_released_sequence_is_forgotten() -> None:
    """Cancelled, or continued by another driver: nobody waits for it here."""
    journal = Journal(clock=Clock())
    journal.add("g/w", part(0, 1))
    journal.release("a")
    assert list(journal.replay()) == []


def test_a_sequence_that_comes_back_later_begins_where_it_is_then() -> None:
    """It was released, ran elsewhere, and goes on here from another position."""
    journal = Journal(clock=Clock())
    journal.add("g/w", part(0, 1))
    journal.add("g/w", part(7, 8))
    assert list(journal.replay()) == [("g/w", part(7, 8))]


def test_replay_says_log_probabilities_with_their_tokens_and_those_of_the_prompt_first() -> None:
    """The origin takes them in that order; how it ended comes with the last token."""
    journal = Journal(clock=Clock())
    told = [PromptNews(start=1, scores=scores(5, 6)), PromptNews(start=3, scores=scores(7))]
    for news in told:
        journal.add("g/w", part(0)._replace(prompt=news))
    journal.add("g/w", scored(part(0, 10))._replace(prompt=PromptNews(cached_tokens=2)))
    journal.add("g/w", scored(part(1, 11)))
    journal.add("g/w", part(2, finish="stop"))
    assert [delivery for _, delivery in journal.replay()] == [
        *[part(0)._replace(prompt=news) for news in (*told, PromptNews(cached_tokens=2))],
        scored(part(0, 10, 11, finish="stop")),
    ]


def test_a_long_output_with_log_probabilities_is_said_again_in_pieces() -> None:
    """A frame has a limit, and so has what may be unsent."""
    journal = Journal(clock=Clock())
    tokens = tuple(range(2 * SCORED_AT_ONCE + 1))
    for token in tokens:
        journal.add("g/w", scored(part(token, token)))
    replayed = [delivery for _, delivery in journal.replay()]
    assert [len(delivery.token_ids) for delivery in replayed] == [SCORED_AT_ONCE, SCORED_AT_ONCE, 1]
    assert replayed == [scored(part(delivery.position, *delivery.token_ids)) for delivery in replayed]
    assert tuple(token for delivery in replayed for token in delivery.token_ids) == tokens


def test_finished_sequences_are_bounded_in_log_probabilities() -> None:
    """Each takes as much memory as a dozen tokens."""
    journal = Journal(clock=Clock())
    length = MOST_FINISHED_VALUES // 3 // 4
    for number in range(6):
        journal.add("g/w", scored(part(0, *range(length), finish="length", sequence_id=str(number))))
    kept = dict.fromkeys(delivery.sequence_id for _, delivery in journal.replay())
    assert list(kept) == ["2", "3", "4", "5"]
    journal.add("g/w", part(0, 1, finish="stop", sequence_id="plain"))
    assert len(dict.fromkeys(delivery.sequence_id for _, delivery in journal.replay())) == 5
