"""What differs between the endpoints that generate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeVar

from gateway.chunks import ChoiceJson
from gateway.prompts import Prompt
from gateway.schema_generation import GenerationBody
from gateway.token_names import TokenNames
from gateway.token_scores import Score
from gateway.tokenizer_pool import TokenizerPool
from gateway.tokens import ChatTokenizer

Body = TypeVar("Body", bound=GenerationBody)


class Endpoint(Protocol[Body]):
    """``prompt_param`` names the field that holds the prompt; ``choice`` is for streams."""

    path: str
    id_prefix: str
    prompt_param: str
    choice: ChoiceJson
    whole_object_name: str

    def parse(self, body: dict[str, Any]) -> Body: ...

    async def encode(self, body: Body, tokenizer: ChatTokenizer, pool: TokenizerPool) -> tuple[Prompt, ...]:
        """The prompts. Raises ``Refused`` when one cannot be encoded."""
        ...

    def logprobs(self, scores: Sequence[Score], names: TokenNames, num_top: int) -> dict[str, Any]:
        """The ``logprobs`` of a choice, or of a part of it."""
        ...

    def whole_choice(self, text: str) -> dict[str, Any]:
        """How a choice of an answer that is not streamed holds its text."""
        ...

    def whole(self, choices: Sequence[dict[str, Any]], prompt_logprobs: Sequence[Any]) -> Mapping[str, Any]:
        """The choices of such an answer. ``prompt_logprobs`` has one for each choice, or none at all."""
        ...
