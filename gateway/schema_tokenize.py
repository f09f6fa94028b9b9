"""The bodies of ``POST /tokenize`` and ``POST /detokenize``, as vLLM has them."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from gateway.schema import Neutral, StrictModel
from gateway.schema_chat import Conversation
from gateway.schema_lists import TokenIds

MAX_TOKENS = 1 << 18
"""To write as text in one request: above any context, and a second of work at most."""


class TokenizeBody(StrictModel):
    """What both ways to tokenise take."""

    model: str = Field(description="The name of a served model.")
    return_token_strs: bool | None = Field(None, description="Tell the tokens as the vocabulary writes them, too.")


class TokenizePromptRequest(TokenizeBody):
    """A raw prompt, as `/v1/completions` would read it."""

    prompt: str
    add_special_tokens: bool | None = Field(
        None, description="Not given or true: with the tokens that the tokenizer adds, as a bos."
    )


class TokenizeMessagesRequest(TokenizeBody, Conversation):
    """A conversation, as `/v1/chat/completions` would read it."""

    add_special_tokens: Annotated[None, Neutral(False)] = None
    continue_final_message: Annotated[None, Neutral(False)] = None
    chat_template: Annotated[None, Neutral()] = None
    tools: Annotated[None, Neutral([])] = None


class DetokenizeRequest(StrictModel):
    """Token ids, to be written as text."""

    model: str = Field(description="The name of a served model.")
    tokens: Annotated[tuple[int, ...], TokenIds(max_length=MAX_TOKENS)]
