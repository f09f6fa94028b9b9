"""``POST /v1/chat/completions``."""

from __future__ import annotations

from typing import Any

from gateway.chunks import ChoiceJson
from gateway.schema_chat import ChatCompletionRequest
from gateway.tokenizer_pool import TokenizerPool
from gateway.tokens import ChatTokenizer
from workers.wire import ModelCard


class ChatEndpoint:
    """Conversations. The first chunk of a stream has the role and no text."""

    path = "/v1/chat/completions"
    id_prefix = "chatcmpl"
    prompt_param = "messages"
    whole_object_name = "chat.completion"
    choice = ChoiceJson(
        object_name="chat.completion.chunk",
        opening=b'{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}',
        text_before=b'{"index":0,"delta":{"content":',
        text_after=b'},"logprobs":null,"finish_reason":null}',
        finish_before=b'{"index":0,"delta":{},"logprobs":null,"finish_reason":',
        finish_after=b"}",
    )

    def parse(self, body: dict[str, Any]) -> ChatCompletionRequest:
        return ChatCompletionRequest.parse(body)

    async def encode(
        self,
        body: ChatCompletionRequest,
        card: ModelCard,  # noqa: ARG002 - a template makes no ids that its model lacks
        tokenizer: ChatTokenizer,
        pool: TokenizerPool,
    ) -> tuple[int, ...]:
        return await pool.run(tokenizer.encode_chat, [message.for_template() for message in body.messages])

    def whole(self, text: str, finish: str) -> dict[str, Any]:
        message = {"role": "assistant", "content": text, "refusal": None}
        return {"index": 0, "message": message, "logprobs": None, "finish_reason": finish}
