"""What a body becomes for the machinery."""

from __future__ import annotations

import pytest

from gateway.errors import Refused
from gateway.output import NoOutput, OutputText
from gateway.prompts import Echo, Prompt
from gateway.sequences import choices_of, sequences_of
from gateway.tokens import ChatTokenizer
from tests.gateway.bodies import chat, completion
from tests.gateway.fakes import tiny_card
from tests.gateway.tiny_tokenizer import ids_of_text, tokenizer_files

FILES = tokenizer_files()
CARD = tiny_card(FILES, context_length=10)
TINY = ChatTokenizer(FILES)
SHORT, LONG = Prompt(ids=(5, 6)), Prompt(ids=(5, 6, 7, 8))


def test_every_prompt_has_its_choices_one_after_the_other() -> None:
    """The streams come in this order, and so do the choices of the answer."""
    sequences = sequences_of(completion(n=2), (SHORT, LONG), CARD, "prompt")
    assert [sequence.prompt_ids for sequence in sequences] == [SHORT.ids, SHORT.ids, LONG.ids, LONG.ids]
    assert [sequence.sampling.choice for sequence in sequences] == [0, 1, 0, 1]


def test_without_a_limit_an_output_may_fill_the_context_of_its_own_prompt() -> None:
    """Each prompt leaves another room."""
    bounds = [sequence.max_tokens for sequence in sequences_of(completion(), (SHORT, LONG), CARD, "prompt")]
    assert bounds == [8, 6]


@pytest.mark.parametrize(
    ("fields", "ids", "param"),
    [
        ({}, (), "prompt"),
        ({}, (331,), "prompt"),
        ({}, (5,) * 10, "prompt"),
        ({"max_tokens": 8}, (5, 6, 7), "max_tokens"),
        ({"min_tokens": 8}, (5, 6, 7), "min_tokens"),
        ({"max_tokens": 0, "echo": True}, (5,) * 10, "prompt"),
    ],
)
def test_what_a_worker_would_fail_on_is_refused(fields: dict[str, object], ids: tuple[int, ...], param: str) -> None:
    """Of several prompts the one at fault is named."""
    for prompts, name in (((Prompt(ids=ids),), param), ((SHORT, Prompt(ids=ids)), param.replace("pt", "pt[1]"))):
        with pytest.raises(Refused) as refused:
            sequences_of(completion(**fields), prompts, CARD, "prompt")
        assert refused.value.param == name


def test_a_prompt_that_is_only_scored_needs_room_for_one_token() -> None:
    """That is said as it is: the client asked for none."""
    with pytest.raises(Refused, match="the prompt has 10, and one is made to score it"):
        sequences_of(completion(max_tokens=0, echo=True), (Prompt(ids=(5,) * 10),), CARD, "prompt")


def test_an_eos_is_run_past_where_one_token_is_wanted_for_its_number() -> None:
    """Only there: longer outputs end where the model ends them."""
    for body, runs_past in (
        (completion(max_tokens=1, logprobs=0), True),
        (chat(max_tokens=1, logprobs=True), True),
        (completion(max_tokens=2, logprobs=0), False),
        (completion(max_tokens=1), False),
        (completion(max_tokens=1, ignore_eos=True), True),
    ):
        (sequence,) = sequences_of(body, (SHORT,), CARD, "prompt")
        assert sequence.sampling.ignore_eos == runs_past


def test_choices_take_their_streams_in_order() -> None:
    """With what the body says of their text."""
    body = completion(n=2, logprobs=1, echo=True)
    prompt = Prompt(ids=ids_of_text("Hi"), echo=Echo(text="Hi", offsets=(0, 1)))
    streams = [object(), object()]
    choices = choices_of(body, (prompt,), streams, CARD, TINY)  # type: ignore[arg-type]
    assert [choice.stream for choice in choices] == streams
    assert all(isinstance(choice.output, OutputText) for choice in choices)
    (only,) = choices_of(completion(max_tokens=0, echo=True), (prompt,), streams[:1], CARD, TINY)  # type: ignore[arg-type]
    assert isinstance(only.output, NoOutput)
