"""The output of a sequence: where its text ends, and which of its tokens count."""

from __future__ import annotations

import pytest

from gateway.dispatch import Tokens
from gateway.errors import Reason
from gateway.output import NoOutput, OutputText
from gateway.stops import StopMatcher, StopText
from gateway.token_scores import ScoreQueue
from gateway.tokens import ChatTokenizer
from tests.gateway.fakes import score
from tests.gateway.tiny_tokenizer import ids_of_bytes, ids_of_text, tokenizer_files

TINY = ChatTokenizer(tokenizer_files())


def output(*stops: str, min_tokens: int = 0, stop_text: StopText = StopText.LEFT_OUT) -> OutputText:
    return OutputText(TINY.detokenizer(()), StopMatcher(stops, stop_text), min_tokens=min_tokens)


def tokens(text: str) -> Tokens:
    return Tokens(token_ids=ids_of_text(text))


def test_the_token_that_completes_a_stop_string_is_the_last_one_counted() -> None:
    """What came with it in the same item was made for nothing, and nobody pays for it."""
    out = output("END")
    assert out.take(tokens("a END and more")) == "a "
    assert (out.finish, out.stop_reason) == ("stop", "END")
    assert out.num_tokens == len(ids_of_text("a END"))


def test_a_stop_string_that_is_asked_for_is_the_end_of_the_text() -> None:
    """And nothing behind it, though the same token had more."""
    out = output("END", stop_text=StopText.INCLUDED)
    assert out.take(tokens("a E")) + out.take(tokens("NDing")) == "a END"


def test_stop_strings_count_from_the_tokens_that_must_come() -> None:
    """``min_tokens`` keeps every end away; text before it is shown at once."""
    out = output("a", min_tokens=2)
    assert out.take(Tokens(token_ids=ids_of_bytes(b"aa"))) == "aa"
    assert out.take(Tokens(token_ids=ids_of_bytes(b"ba"))) == "b"
    assert (out.finish, out.num_tokens) == ("stop", 4)


def test_the_end_tells_which_stop_id_it_was() -> None:
    """An eos is none, nor is the length."""
    for finish, stop_id in (("stop", 7), ("stop", None), ("length", None)):
        out = output()
        out.take(Tokens(token_ids=(), finish=finish, stop_id=stop_id))
        assert (out.finish, out.stop_reason) == (finish, stop_id)


def test_text_withheld_at_the_end_may_hold_a_stop_string() -> None:
    """It waited for a longer one further left that did not come."""
    out = output("abcd", "bc")
    assert out.take(tokens("xabc")) == "x"
    assert out.take(Tokens(token_ids=(), finish="length")) == "a"
    assert (out.finish, out.stop_reason) == ("stop", "bc")


def test_an_eos_that_was_run_past_ends_the_output_as_one() -> None:
    """The worker was told to count it, and calls the end a length."""
    out = OutputText(TINY.detokenizer(()), StopMatcher(()), scores=ScoreQueue(), eos_ids=(2,))
    assert out.take(Tokens(token_ids=(2,), logprobs=(score(2, 0),), finish="length")) == ""
    assert (out.finish, out.num_tokens) == ("stop", 1)
    assert [told.token_id for told in out.take_scores()] == [2]


def test_a_failed_item_does_not_end_the_output() -> None:
    """The failure is told; the text so far is not whole."""
    for out in (output(), NoOutput()):
        assert out.take(Tokens(token_ids=(), error=Reason.WORKER_LOST)) == ""
        assert out.finish is None


def test_a_token_without_its_log_probability_is_a_fault() -> None:
    """Better no answer than numbers beside the wrong tokens."""
    out = OutputText(TINY.detokenizer(()), StopMatcher(()), scores=ScoreQueue())
    with pytest.raises(IndexError):
        out.take(tokens("a"))
