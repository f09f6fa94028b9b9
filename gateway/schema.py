"""What every request body has in common: strict types, named refusals, and the parameters of both endpoints.

Three rules, stated once. A parameter that would change the answer is either implemented or refused with a 400 that
names it; its *neutral* value (the one that changes nothing) is accepted, since clients send their defaults. A field
that is not in the OpenAI API, nor a documented extra of vLLM or SGLang, is refused the same way: a misspelt parameter
must not be ignored. ``null`` always means "not given". Where a key appears twice in a body, the last one counts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError

from gateway.deadlines import MOST_DEADLINE_MS
from gateway.errors import Reason, Refused
from workers.wire import Sampling

MAX_STOPS = 4
"""As many as OpenAI takes."""
MAX_STOP_CHARS = 256
"""Text is withheld while it could begin a stop string, so this bounds what a stream holds back."""
MAX_NAME_CHARS = 64
"""Most characters of a client's own word (a model, a field) that an error message repeats."""
SEED_MASK = (1 << 63) - 1
"""The random number generator's seed has 63 bits: the low ones of a client's 64-bit seed."""
UNION_TAGS = frozenset({":text", ":parts", ":ids"})
"""Names of union branches. They never show in ``param``."""


class StrictModel(BaseModel):
    """No coercion, no unknown fields, no NaN; values never change after parsing nor show in error texts."""

    model_config = ConfigDict(
        strict=True,
        frozen=True,
        extra="forbid",
        allow_inf_nan=False,
        hide_input_in_errors=True,
        protected_namespaces=(),
    )

    @classmethod
    def parse(cls, body: Mapping[str, Any]) -> Self:
        """The model of ``body``. Raises ``Refused`` with the first thing wrong, its ``param`` as in ``stop[1]``."""
        try:
            return cls.model_validate(body)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            raise _refusal(first) from None


def neutral(*values: object) -> BeforeValidator:
    """A parameter that is not implemented: ``null`` and the given values are accepted, anything else is refused."""

    def check(value: object) -> None:
        if value is not None and not any(_same(value, accepted) for accepted in values):
            raise PydanticCustomError("not_supported", "is not supported yet")

    return BeforeValidator(check)


def one_or_many(what: str) -> Callable[[object], object]:
    """Read ``null`` as none, one string as a list of one; refuse what is no list."""

    def normalise(value: object) -> object:
        if value is None:
            return ()
        if isinstance(value, str):
            return (value,)
        if isinstance(value, list):
            return tuple(value)
        raise PydanticCustomError("wrong_type", f"should be a string or an array of {what}")

    return normalise


def shorten(text: str) -> str:
    """A client's own word as it may appear in a message: bounded, and printable."""
    clean = text[:MAX_NAME_CHARS].encode("unicode_escape").decode("ascii")
    return clean if len(text) <= MAX_NAME_CHARS else f"{clean}..."


def _same(value: object, accepted: object) -> bool:
    """Equal as JSON: ``true`` is not 1."""
    return isinstance(value, bool) == isinstance(accepted, bool) and value == accepted


_MESSAGES = {
    "missing": "is required",
    "extra_forbidden": "is not a known parameter",
    "tuple_type": "should be an array",
    "dict_type": "should be an object",
    "model_type": "should be an object",
    "too_short": "should have at least {min_length} item(s)",
    "too_long": "should have at most {max_length} items",
    "string_too_short": "should have at least {min_length} character(s)",
    "string_too_long": "should have at most {max_length} characters",
}
"""What pydantic says in Python's words, said in JSON's."""


def _refusal(error: ErrorDetails) -> Refused:
    param = _param(error["loc"])
    template = _MESSAGES.get(error["type"])
    # Where the table is silent pydantic writes "Input should be ...".
    problem = template.format_map(error.get("ctx", {})) if template else error["msg"].removeprefix("Input ")
    return Refused(Reason.INVALID_VALUE, f"'{param}' {problem}.", param=param)


def _param(location: tuple[int | str, ...]) -> str:
    param = ""
    for step in location:
        if isinstance(step, int):
            param += f"[{step}]"
        elif step not in UNION_TAGS:
            param += f".{shorten(step)}" if param else shorten(step)
    return param


StopString = Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARS)]
Stops = Annotated[
    tuple[StopString, ...], Field(max_length=MAX_STOPS, strict=False), BeforeValidator(one_or_many("strings"))
]
Metadata = dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]]


class StreamOptions(StrictModel):
    """``stream_options``."""

    include_usage: bool | None = None
    include_obfuscation: Annotated[None, neutral(False)] = None


class GenerationBody(StrictModel):
    """The parameters that both endpoints share.

    ``max_tokens`` not given means: all that fits in the model's context after the prompt. ``top_p`` 0 keeps the most
    likely token only. ``priority`` and ``service_tier`` select the class: ``gateway.class_table`` says how.
    """

    model: str
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    seed: Annotated[int, Field(ge=-(1 << 63), lt=1 << 63)] | None = None
    stop: Stops = ()
    ignore_eos: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    deadline_ms: Annotated[int, Field(ge=1, le=MOST_DEADLINE_MS)] | None = None
    priority: Annotated[int, Field(ge=-(1 << 31), lt=1 << 31)] | None = None
    service_tier: Literal["auto", "default", "standard", "priority", "flex"] | None = None

    # Labels of the client's own: bounded, and without influence on the answer.
    user: Annotated[str, Field(max_length=512)] | None = None
    metadata: Annotated[Metadata, Field(max_length=16)] | None = None

    # OpenAI's, not implemented yet.
    n: Annotated[None, neutral(1)] = None
    presence_penalty: Annotated[None, neutral(0)] = None
    frequency_penalty: Annotated[None, neutral(0)] = None
    logit_bias: Annotated[None, neutral({})] = None

    # vLLM's and SGLang's, not implemented yet.
    top_k: Annotated[None, neutral(0, -1)] = None
    min_p: Annotated[None, neutral(0)] = None
    repetition_penalty: Annotated[None, neutral(1)] = None
    length_penalty: Annotated[None, neutral(1)] = None
    min_tokens: Annotated[None, neutral(0)] = None
    stop_token_ids: Annotated[None, neutral([])] = None
    include_stop_str_in_output: Annotated[None, neutral(False)] = None
    skip_special_tokens: Annotated[None, neutral(True)] = None
    spaces_between_special_tokens: Annotated[None, neutral(True)] = None
    use_beam_search: Annotated[None, neutral(False)] = None
    best_of: Annotated[None, neutral(1)] = None
    bad_words: Annotated[None, neutral([])] = None
    allowed_token_ids: Annotated[None, neutral([])] = None
    prompt_logprobs: Annotated[None, neutral()] = None
    truncate_prompt_tokens: Annotated[None, neutral()] = None

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    @property
    def output_limit(self) -> int | None:
        """The most output tokens the client asked for, None when it did not say."""
        return self.max_tokens

    def check(self) -> None:
        """Raise ``Refused`` when parameters contradict each other."""
        if self.stream_options is not None and not self.stream:
            raise Refused(
                Reason.INVALID_VALUE, "'stream_options' is only allowed when 'stream' is true.", param="stream_options"
            )

    def sampling(self, *, fresh_seed: int) -> Sampling:
        """How to choose tokens; ``fresh_seed`` is used when the client brings none."""
        return Sampling(
            temperature=1.0 if self.temperature is None else self.temperature,
            top_p=1.0 if self.top_p is None else self.top_p,
            seed=fresh_seed if self.seed is None else self.seed & SEED_MASK,
            ignore_eos=bool(self.ignore_eos),
        )
