"""The body of ``POST /v1/completions``."""

from __future__ import annotations

from typing import Annotated

from pydantic import Discriminator, Field, Tag

from gateway.schema import invalid
from gateway.schema_generation import MAX_SEQUENCES, GenerationBody, Width
from gateway.schema_lists import TokenIds
from gateway.schema_refused import RefusedInCompletions


def _prompt_kind(value: object) -> str | None:
    """By the first member, as the members of a list are all alike; the empty list is one of ids, and too short."""
    if isinstance(value, str):
        return ":text"
    if not isinstance(value, list):
        return None
    first = value[0] if value else None
    return ":texts" if isinstance(first, str) else ":id_lists" if isinstance(first, list) else ":ids"


TextPrompt = Annotated[str, Field(min_length=1)]
IdPrompt = Annotated[tuple[int, ...], TokenIds(min_length=1)]
SEVERAL = Field(min_length=1, max_length=MAX_SEQUENCES, strict=False, fail_fast=True)
Prompts = Annotated[
    Annotated[TextPrompt, Tag(":text")]
    | Annotated[tuple[TextPrompt, ...], SEVERAL, Tag(":texts")]
    | Annotated[IdPrompt, Tag(":ids")]
    | Annotated[tuple[IdPrompt, ...], SEVERAL, Tag(":id_lists")],
    Discriminator(
        _prompt_kind,
        custom_error_type="wrong_type",
        custom_error_message="should be a string, an array of strings, of token ids, or of arrays of token ids",
    ),
]


class CompletionRequest(GenerationBody, RefusedInCompletions):
    """A raw prompt, or several. Control tokens that a text prompt spells are control tokens.

    (``/v1/chat/completions`` is the endpoint for text of people who must not write control tokens.)
    """

    prompt: Prompts = Field(
        description="A text, a list of texts, a list of token ids, or a list of such lists; none of them empty. Each"
        " prompt has choices of its own, in the order of prompts."
    )
    max_tokens: Annotated[int, Field(ge=0)] | None = Field(
        None,
        description="Most tokens of an output. Not given: all that fits in the context after the prompt. 0 only with"
        " `echo`: nothing but the prompt is answered.",
    )
    echo: bool | None = Field(
        None, description="The text begins with the prompt, and `logprobs` with those of its tokens."
    )
    logprobs: Width | None = Field(
        None,
        description="Log-probabilities of the tokens, and of so many of the likeliest beside each. (OpenAI: up to 5)",
    )
    best_of: Annotated[int, Field(ge=1)] | None = Field(None, description="Only the value of `n`: nothing is left out.")
    add_special_tokens: bool | None = Field(
        None, description="Not given or true: text prompts get the tokens that the tokenizer adds, as a bos. (vLLM)"
    )

    @property
    def prompts(self) -> tuple[str | tuple[int, ...], ...]:
        """All prompts; one that stands alone is a list of one."""
        if isinstance(self.prompt, str):
            return (self.prompt,)
        if isinstance(self.prompt[0], int):
            return (self.prompt,)
        return self.prompt

    @property
    def prompt_chars(self) -> tuple[int, ...]:
        return tuple([len(prompt) for prompt in self.prompts if isinstance(prompt, str)])

    @property
    def num_top_logprobs(self) -> int | None:
        return self.logprobs

    @property
    def num_prompt_logprobs(self) -> int | None:
        echoed = self.logprobs if self.echo else None
        widths = [width for width in (self.prompt_logprobs, echoed) if width is not None]
        return max(widths, default=None)

    def check(self) -> None:
        super().check()
        if self.max_tokens == 0 and not self.echo:
            raise invalid("max_tokens", "should be at least 1 without 'echo'")
        if self.best_of is not None and self.best_of != self.num_choices:
            raise invalid("best_of", "should be equal to 'n'")
        num_prompts = len(self.prompts)
        if num_prompts * self.num_choices > MAX_SEQUENCES:
            raise invalid("n", f"times the number of prompts should be at most {MAX_SEQUENCES}")
