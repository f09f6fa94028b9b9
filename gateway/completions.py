"""``POST /v1/completions``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gateway.chunks import ChoiceJson
from gateway.logprobs import completion_logprobs
from gateway.prompts import Prompt, echo_of
from gateway.schema_completions import CompletionRequest
from gateway.token_names import TokenNames
from gateway.token_scores import Score
from gateway.tokenizer_pool import TokenizerPool
from gateway.tokens import ChatTokenizer


class CompletionEndpoint:
    """Raw prompts."""

    path = "/v1/completions"
    id_prefix = "cmpl"
    prompt_param = "prompt"
    whole_object_name = "text_completion"
    choice = ChoiceJson(
        object_name="text_completion",
        opening=None,
        text_before=b',"text":',
        text_after=b',"logprobs":',
        last=b',"text":""',
    )

    def parse(self, body: dict[str, Any]) -> CompletionRequest:
        return CompletionRequest.parse(body)

    async def encode(
        self, body: CompletionRequest, tokenizer: ChatTokenizer, pool: TokenizerPool
    ) -> tuple[Prompt, ...]:
        encode = tokenizer.encode_bare_text if body.add_special_tokens is False else tokenizer.encode_text
        prompts: list[Prompt] = []
        for prompt in body.prompts:
            token_ids = await pool.run(encode, prompt) if isinstance(prompt, str) else prompt
            echo = await pool.run(echo_of, tokenizer, prompt, token_ids) if body.echo else None
            prompts.append(Prompt(ids=token_ids, echo=echo))
        return tuple(prompts)

    def logprobs(self, scores: Sequence[Score], names: TokenNames, num_top: int) -> dict[str, Any]:
        return completion_logprobs(scores, names, num_top)

    def whole_choice(self, text: str) -> dict[str, Any]:
        return {"text": text}

    def whole(self, choices: Sequence[dict[str, Any]], prompt_logprobs: Sequence[Any]) -> Mapping[str, Any]:
        """What is told of a prompt stands in each of its choices."""
        if not prompt_logprobs:
            return {"choices": choices}
        told = zip(choices, prompt_logprobs, strict=True)
        return {"choices": [choice | {"prompt_logprobs": of_prompt} for choice, of_prompt in told]}
