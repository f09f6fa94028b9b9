"""``POST /v1/chat/completions``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gateway.chunks import ChoiceJson
from gateway.logprobs import chat_logprobs
from gateway.prompts import Prompt
from gateway.schema_chat import ChatCompletionRequest
from gateway.token_names import TokenNames
from gateway.token_scores import Score
from gateway.tokenizer_pool import TokenizerPool
from gateway.tokens import ChatTokenizer


class ChatEndpoint:
    """Conversations. The first chunk of each choice has the role and no text."""

    path = "/v1/chat/completions"
    id_prefix = "chatcmpl"
    prompt_param = "messages"
    whole_object_name = "chat.completion"
    choice = ChoiceJson(
        object_name="chat.completion.chunk",
        opening=b',"delta":{"role":"assistant","content":""}',
        text_before=b',"delta":{"content":',
        text_after=b'},"logprobs":',
        last=b',"delta":{}',
    )

    def parse(self, body: dict[str, Any]) -> ChatCompletionRequest:
        return ChatCompletionRequest.parse(body)

    async def encode(
        self, body: ChatCompletionRequest, tokenizer: ChatTokenizer, pool: TokenizerPool
    ) -> tuple[Prompt, ...]:
        return (Prompt(ids=await pool.run(tokenizer.encode_chat, body.for_template(), body.rendering)),)

    def logprobs(self, scores: Sequence[Score], names: TokenNames, num_top: int) -> dict[str, Any]:
        return chat_logprobs(scores, names, num_top)

    def whole_choice(self, text: str) -> dict[str, Any]:
        return {"message": {"role": "assistant", "content": text, "refusal": None}}

    def whole(self, choices: Sequence[dict[str, Any]], prompt_logprobs: Sequence[Any]) -> Mapping[str, Any]:
        """There is one prompt, so what is told of it stands beside the choices."""
        return {"choices": choices} | ({"prompt_logprobs": prompt_logprobs[0]} if prompt_logprobs else {})
