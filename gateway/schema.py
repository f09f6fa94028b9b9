"""The rules for every request body: strict types, named refusals.

Three rules, stated once. A parameter that would change the answer is either implemented or refused with a 400 that
names it; its *neutral* value (the one that changes nothing) is accepted, since clients send their defaults. A field
that is not in the OpenAI API, nor a documented extra of vLLM or SGLang, is refused the same way: a misspelt parameter
must not be ignored. ``null`` always means "not given". Where a key appears twice in a body, the last one counts.

The models are the one source of what is accepted: bounds, descriptions and alternatives stand in them and nowhere else.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, GetJsonSchemaHandler, ValidationError, model_validator
from pydantic_core import CoreSchema, ErrorDetails, PydanticCustomError, core_schema

from gateway.errors import Reason, Refused

MAX_NAME_CHARS = 64
"""Most characters of a client's own word (a model, a field) that an error message repeats."""

_STEPS_WITHOUT_NAME = frozenset(
    {":text", ":texts", ":parts", ":ids", ":id_lists", ":flag", ":whole", ":number", "[key]"}
)
"""Names of union branches, and how pydantic marks a key. They never show in ``param``."""


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

    @model_validator(mode="before")
    @classmethod
    def _name_one_unknown_field(cls, value: object) -> object:
        """One, however many there are: an error for each would take seconds where a body is full of them."""
        if isinstance(value, dict):
            for name in value:
                if name not in cls.model_fields:
                    raise PydanticCustomError("unknown_field", "is not a known parameter", {"at": name})
        return value

    @classmethod
    def parse(cls, body: Mapping[str, Any]) -> Self:
        """The model of ``body``. Raises ``Refused`` with the first thing wrong, its ``param`` as in ``stop[1]``."""
        try:
            return cls.model_validate(body)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            raise _refusal(first) from None


class Neutral:
    """A parameter that is not implemented: ``null`` and the given values are accepted, anything else is refused."""

    def __init__(self, *values: object) -> None:
        self._values = values

    def __get_pydantic_core_schema__(self, _source: Any, _handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self._check)

    def __get_pydantic_json_schema__(self, _schema: CoreSchema, _handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"enum": [*self._values, None], "description": "Not supported yet: only what changes nothing."}

    def _check(self, value: object) -> None:
        if value is not None and not any(_same(value, accepted) for accepted in self._values):
            raise PydanticCustomError("not_supported", "is not supported yet")


def shorten(text: str) -> str:
    """A client's own word as it may appear in a message: bounded, and printable."""
    clean = text[:MAX_NAME_CHARS].encode("unicode_escape").decode("ascii")
    return clean if len(text) <= MAX_NAME_CHARS else f"{clean}..."


def invalid(param: str, problem: str) -> Refused:
    """The refusal of a value; ``problem`` goes on after the parameter's name."""
    return Refused(Reason.INVALID_VALUE, f"'{param}' {problem}.", param=param)


def _same(value: object, accepted: object) -> bool:
    """Equal as JSON: ``true`` is not 1."""
    return isinstance(value, bool) == isinstance(accepted, bool) and value == accepted


_MESSAGES = {
    "missing": "is required",
    "tuple_type": "should be an array",
    "dict_type": "should be an object",
    "model_type": "should be an object",
    "too_short": "should have at least {min_length} item(s)",
    "too_long": "should have at most {max_length} items",
    "string_too_short": "should have at least {min_length} character(s)",
    "string_too_long": "should have at most {max_length} characters",
    "string_pattern_mismatch": "should match {pattern}",
}
"""What pydantic says in Python's words, said in JSON's."""


def _refusal(error: ErrorDetails) -> Refused:
    template = _MESSAGES.get(error["type"])
    # Where the table is silent pydantic writes "Input should be ...".
    problem = template.format_map(error.get("ctx", {})) if template else error["msg"].removeprefix("Input ")
    # Where pydantic cannot know the place, the validator says it.
    at = error.get("ctx", {}).get("at")
    return invalid(_param(error["loc"] if at is None else (*error["loc"], at)), problem)


def _param(location: tuple[int | str, ...]) -> str:
    param = ""
    for step in location:
        if isinstance(step, int):
            param += f"[{step}]"
        elif step not in _STEPS_WITHOUT_NAME:
            param += f".{shorten(step)}" if param else shorten(step)
    return param
