"""Lists and maps of a body, however long: checked fast, and with one error at most.

A body has room for a million members, and pydantic makes an error for each that is wrong: half a minute in which
nothing else is done. So lists end at their first error, maps are counted before they are looked into, and lists of
token ids, which are long in good requests too, are checked by a few calls that each run over the whole.
"""

from __future__ import annotations

from typing import Any

from pydantic import BeforeValidator, GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

MOST_TOKEN_ID = (1 << 32) - 1
"""As the wire to the workers has it."""


def at_most(count: int) -> BeforeValidator:
    """A map of at most ``count`` members. ``Field(max_length=...)`` counts too, but only after it has looked at all."""

    def check(value: object) -> object:
        if isinstance(value, dict) and len(value) > count:
            raise PydanticCustomError("too_many", "should have at most {count} items", {"count": count})
        return value

    return BeforeValidator(check)


class TokenIds:
    """The annotation of a tuple of token ids."""

    def __init__(self, *, min_length: int = 0, max_length: int | None = None) -> None:
        self._min_length = min_length
        self._max_length = max_length

    def __get_pydantic_core_schema__(self, _source: Any, _handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self._check)

    def __get_pydantic_json_schema__(self, _schema: CoreSchema, _handler: GetJsonSchemaHandler) -> dict[str, Any]:
        token_id = {"type": "integer", "minimum": 0, "maximum": MOST_TOKEN_ID}
        bounds = {"minItems": self._min_length, "maxItems": self._max_length}
        return {"type": "array", "items": token_id} | {name: bound for name, bound in bounds.items() if bound}

    def _check(self, value: object) -> tuple[int, ...]:
        if not isinstance(value, list):
            raise PydanticCustomError("wrong_type", "should be an array of token ids")
        if len(value) < self._min_length:
            raise PydanticCustomError("too_few", "should have at least {count} item(s)", {"count": self._min_length})
        if self._max_length is not None and len(value) > self._max_length:
            raise PydanticCustomError("too_many", "should have at most {count} items", {"count": self._max_length})
        if value and (set(map(type, value)) != {int} or min(value) < 0 or max(value) > MOST_TOKEN_ID):
            wrong = next(index for index, member in enumerate(value) if not _is_token_id(member))
            raise PydanticCustomError("no_token_id", "should be a token id", {"at": wrong})
        return tuple(value)


def _is_token_id(member: object) -> bool:
    return type(member) is int and 0 <= member <= MOST_TOKEN_ID
