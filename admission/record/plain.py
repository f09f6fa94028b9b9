"""Values as plain data and back, by their declared types.

A dataclass becomes the tuple of its fields in their order, a member of a union of dataclasses the same with its place
in the union before it; enums become their values. What is left are numbers, strings, bytes, None and tuples, as msgpack
knows them. Nothing says its type in the data: it is read by the type that is expected there, so nothing unexpected can
come to life, and a record costs no more than its values.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from operator import attrgetter
from typing import Any, NamedTuple, Union, get_args, get_origin, get_type_hints

Plain = Any
"""None, bool, int, float, str, bytes, or a tuple of such."""


class PlainError(ValueError):
    """The data is not of the type that is expected there."""


class _Codec(NamedTuple):
    """``is_same``: values are plain already. Writing is on the way of every step, so it calls as little as it can."""

    to_plain: Callable[[Any], Plain]
    from_plain: Callable[[Plain], Any]
    is_same: bool = False


def to_plain(hint: Any, value: object) -> Plain:
    """``value``, which is of type ``hint``, as plain data."""
    return codec(hint).to_plain(value)


def from_plain(hint: Any, data: Plain) -> Any:
    """The value of type ``hint`` in ``data``. Raises ``PlainError``."""
    return codec(hint).from_plain(data)


@cache
def codec(hint: Any) -> _Codec:
    """Made once for each type. Raises ``TypeError`` for a type that has no place in a log."""
    if hint is None or hint is type(None):
        return _scalar(type(None))
    if get_origin(hint) in {Union, types.UnionType}:
        return _union(get_args(hint))
    if get_origin(hint) is tuple:
        return _tuple(get_args(hint))
    if isinstance(hint, type) and issubclass(hint, Enum):
        return _enum(hint)
    if is_dataclass(hint) and isinstance(hint, type):
        return _dataclass(hint)
    if hint in {bool, int, float, str, bytes}:
        return _scalar(hint)
    raise TypeError(f"{hint!r} has no plain form")


def _scalar(kind: type) -> _Codec:
    def read(data: Plain) -> Any:
        if type(data) is not kind:
            raise PlainError(f"{kind.__name__} expected, {type(data).__name__} found")
        return data

    return _Codec(_same, read, is_same=True)


def _same(value: Any) -> Plain:
    return value


def _enum(kind: type[Enum]) -> _Codec:
    def read(data: Plain) -> Any:
        try:
            return kind(data)
        except ValueError as error:
            raise PlainError(str(error)) from None

    return _Codec(lambda value: value.value, read)


def _union(members: tuple[Any, ...]) -> _Codec:
    """``X | None``, or dataclasses alone."""
    some = [member for member in members if member is not type(None)]
    if len(some) < len(members):
        inner = codec(some[0]) if len(some) == 1 else codec(Union[tuple(some)])  # noqa: UP007 - made at run time
        return _Codec(
            _same if inner.is_same else lambda value: None if value is None else inner.to_plain(value),
            lambda data: None if data is None else inner.from_plain(data),
            is_same=inner.is_same,
        )
    codecs = [codec(member) for member in some]
    places = {member: place for place, member in enumerate(some)}
    writers = [member.to_plain for member in codecs]

    def write(value: Any) -> Plain:
        place = places[type(value)]
        return (place, *writers[place](value))

    def read(data: Plain) -> Any:
        if type(data) is not tuple or not data or type(data[0]) is not int or not 0 <= data[0] < len(codecs):
            raise PlainError("none of the kinds that can stand here")
        return codecs[data[0]].from_plain(data[1:])

    return _Codec(write, read)


def _tuple(items: tuple[Any, ...]) -> _Codec:
    if len(items) == 2 and items[1] is Ellipsis:
        return _many(codec(items[0]))
    codecs = [codec(item) for item in items]

    def read(data: Plain) -> Any:
        _expect_items(data, len(codecs))
        return tuple([item.from_plain(part) for item, part in zip(codecs, data, strict=True)])

    if all(item.is_same for item in codecs):
        return _Codec(_same, read, is_same=True)
    return _Codec(
        lambda value: tuple([item.to_plain(part) for item, part in zip(codecs, value, strict=True)]),
        read,
    )


def _many(item: _Codec) -> _Codec:
    def read(data: Plain) -> Any:
        if type(data) is not tuple:
            raise PlainError(f"a list expected, {type(data).__name__} found")
        return tuple([item.from_plain(part) for part in data])

    if item.is_same:
        return _Codec(_same, read, is_same=True)
    write = item.to_plain
    return _Codec(lambda value: tuple([write(part) for part in value]), read)


def _values_of(names: list[str]) -> Callable[[Any], tuple[Any, ...]]:
    """The attributes of these names, as a tuple; the quick way gives one only for two or more."""
    if len(names) > 1:
        return attrgetter(*names)
    return lambda value: tuple([getattr(value, name) for name in names])


def _dataclass(kind: type) -> _Codec:
    hints = get_type_hints(kind)
    names = [each.name for each in fields(kind)]
    codecs = [codec(hints[name]) for name in names]
    values = _values_of(names)
    writers = [(place, each.to_plain) for place, each in enumerate(codecs) if not each.is_same]

    def write(value: Any) -> Plain:
        if not writers:
            return values(value)
        parts = list(values(value))
        for place, write_part in writers:
            if parts[place]:  # nothing, or an empty tuple, is plain already
                parts[place] = write_part(parts[place])
        return tuple(parts)

    def read(data: Plain) -> Any:
        _expect_items(data, len(names))
        parts = {name: each.from_plain(part) for name, each, part in zip(names, codecs, data, strict=True)}
        return kind(**parts)

    return _Codec(write, read)


def _expect_items(data: Plain, count: int) -> None:
    if type(data) is not tuple or len(data) != count:
        raise PlainError(f"{count} items expected")
