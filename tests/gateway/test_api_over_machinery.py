"""What the API adds, with the real machinery and a scripted worker behind it."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.answers import CompletionAnswer
from tests.gateway.front_door import Door, door
from workers.fake import logprob_of


async def answered(front: Door, **fields: object) -> CompletionAnswer:
    answer = await front.complete(**fields)
    assert answer.status == 200, answer.json
    return CompletionAnswer.model_validate(answer.json)


async def test_choices_and_prompts_are_answered_together(url: str, tmp_path: Path) -> None:
    """All of them are accepted at once, and nothing of them is left."""
    async with door(url, tmp_path) as front:
        answer = await answered(front, prompt=["one two three", "four five six"], n=3, max_tokens=3)
        texts = [choice.text for choice in answer.choices]
        assert texts[0] == texts[1] == texts[2] != texts[3] == texts[4] == texts[5]
        assert [choice.index for choice in answer.choices] == list(range(6))
        assert answer.usage.completion_tokens == 18
        await front.idle()


async def test_more_sequences_than_slots_take_turns(url: str, tmp_path: Path) -> None:
    """The worker has four."""
    async with door(url, tmp_path) as front:
        answer = await answered(front, n=10, max_tokens=3)
        assert [choice.finish_reason for choice in answer.choices] == ["length"] * 10
        await front.idle()


@pytest.mark.parametrize("max_tokens", [0, 3])
async def test_a_prompt_is_scored_and_echoed(url: str, tmp_path: Path, max_tokens: int) -> None:
    """One number for each token but the first; with no output, those of the prompt alone."""
    async with door(url, tmp_path) as front:
        answer = await answered(front, prompt=[5, 6, 7, 8], echo=True, logprobs=2, max_tokens=max_tokens)
        (choice,) = answer.choices
        assert choice.logprobs is not None
        echoed = [6, 7, 8, 5, 6, 7][: 3 + max_tokens]
        assert choice.logprobs.token_logprobs == [None, *[logprob_of(token) for token in echoed]]
        assert answer.usage.completion_tokens == max_tokens
        assert len(choice.logprobs.tokens) == 4 + max_tokens


async def test_log_probabilities_of_prompt_and_output_arrive_for_every_choice(url: str, tmp_path: Path) -> None:
    """With several choices each has those of the prompt."""
    async with door(url, tmp_path) as front:
        answer = await answered(front, prompt=[5, 6, 7, 8], n=2, logprobs=1, prompt_logprobs=3, max_tokens=2)
        for choice in answer.choices:
            assert choice.prompt_logprobs is not None
            assert [None if place is None else len(place) for place in choice.prompt_logprobs] == [None, 3, 3, 3]
            assert choice.logprobs is not None
            assert len(choice.logprobs.tokens) == 2


async def test_what_was_there_of_a_prompt_is_told(url: str, tmp_path: Path) -> None:
    """The second time its blocks lie in the prefix cache."""
    async with door(url, tmp_path) as front:
        prompt = list(range(5, 85))
        first = await answered(front, prompt=prompt)
        second = await answered(front, prompt=prompt)
        assert first.usage.prompt_tokens_details.cached_tokens == 0
        assert 0 < second.usage.prompt_tokens_details.cached_tokens < len(prompt)


async def test_a_stop_id_ends_the_output(url: str, tmp_path: Path) -> None:
    """It is not counted, and has no text. The worker echoes the prompt."""
    async with door(url, tmp_path) as front:
        whole = await answered(front, prompt=[5, 6, 7, 8], logprobs=0, max_tokens=4)
        cut = await answered(front, prompt=[5, 6, 7, 8], stop_token_ids=[7], max_tokens=4)
        assert whole.usage.completion_tokens == 4
        assert (cut.choices[0].finish_reason, cut.choices[0].stop_reason) == ("stop", 7)
        assert whole.choices[0].stop_reason is None
        assert cut.usage.completion_tokens < 4
        assert whole.choices[0].text.startswith(cut.choices[0].text)
