"""``POST /v1/completions``."""

from __future__ import annotations

from typing import Any

from gateway.chunks import ChoiceJson
from gateway.errors import Reason, Refused
from gateway.schema_completions import CompletionRequest
from gateway.tokenizer_pool import TokenizerPool
from gateway.tokens import ChatTokenizer
from workers.wire import ModelCard


class CompletionEndpoint:
    """Raw prompts."""

    path = "/v1/completions"
    id_prefix = "cmpl"
    prompt_param = "prompt"
    whole_object_name = "text_completion"
    choice = ChoiceJson(
        object_name="text_completion",
        opening=None,
        text_before=b'{"index":0,"text":',
        text_after=b',"logprobs":null,"finish_reason":null}',
        finish_before=b'{"index":0,"text":"","logprobs":null,"finish_reason":',
        finish_after=b"}",
    )

    def parse(self, body: dict[str, Any]) -> CompletionRequest:
        return CompletionRequest.parse(body)

    async def encode(
        self, body: CompletionRequest, card: ModelCard, tokenizer: ChatTokenizer, pool: TokenizerPool
    ) -> tuple[int, ...]:
        if isinstance(body.prompt, str):
            return await pool.run(tokenizer.encode_text, body.prompt)
        if max(body.prompt) >= card.vocab_size:
            message = f"'prompt' has a token id beyond the model's {card.vocab_size}."
            raise Refused(Reason.INVALID_VALUE, message, param="prompt")
        return body.prompt

    def whole(self, text: str, finish: str) -> dict[str, Any]:
        return {"index": 0, "text": text, "logprobs": None, "finish_reason": finish}
