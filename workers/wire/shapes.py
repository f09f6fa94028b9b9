"""How a value travels: one shape for each annotation, built once, that packs, unpacks and checks.

A shape turns a value into msgpack's plain types and back, and refuses what does not fit, both ways: another type (a
bool is no int), another arity, a number out of range, a float that is not finite.

Runs of numbers (token ids, blocks, slots) travel as packed little-endian 32-bit integers in one binary value, runs of
floats as 64-bit ones: a prompt of 8192 tokens costs one call to ``struct``. The arrays that remain are short
(``MAX_ITEMS``).
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from operator import attrgetter
from types import NoneType, UnionType
from typing import Annotated, Any, NamedTuple, Union, cast, get_args, get_origin, get_type_hints

from workers.wire.messages import SIGNED

MAX_ITEMS = 16_384
"""Most members of a list of sequences, deliveries or files; a worker has hundreds of slots, not tens of thousands."""

MAX_STRING_BYTES = 64 * 1024
"""Strings are names, ids and sentences."""

MAX_NUMBER = 2**63 - 1
MAX_PACKED_NUMBER = 2**32 - 1


class Shape(NamedTuple):
    """How values of one annotation travel. Both ways raise ``Misfit``."""

    pack: Callable[[Any], Any]
    unpack: Callable[[Any], Any]


class Misfit(Exception):
    """A value does not fit its shape. ``path`` grows from the inside out, for the sentence of the ``WireError``."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem
        self.path = ""

    def inside(self, part: str) -> Misfit:
        self.path = part + self.path
        return self


# --- shapes of single values ------------------------------------------------------------------------------------------


def _number(lowest: int) -> Shape:
    def check(value: Any) -> Any:
        if type(value) is not int:
            raise Misfit(f"is {_kind(value)}, not a number")
        if not lowest <= value <= MAX_NUMBER:
            raise Misfit(f"is {value}, outside {lowest} to {MAX_NUMBER}")
        return value

    return Shape(check, check)


def _float() -> Shape:
    def unpack(value: Any) -> float:
        if type(value) is not float:
            raise Misfit(f"is {_kind(value)}, not a float")
        if not math.isfinite(value):
            raise Misfit("is not finite")
        return value

    def pack(value: Any) -> float:
        # Python lets a whole number stand for a float; the receiver gets a float either way.
        return unpack(float(value) if type(value) is int and abs(value) <= MAX_NUMBER else value)

    return Shape(pack, unpack)


def _text() -> Shape:
    def pack(value: Any) -> str:
        if not isinstance(value, str):
            raise Misfit(f"is {_kind(value)}, not a string")
        try:
            length = len(value.encode())
        except UnicodeEncodeError:
            raise Misfit("holds a lone surrogate, which UTF-8 cannot express") from None
        if length > MAX_STRING_BYTES:
            raise Misfit(f"takes {length} bytes; a string holds {MAX_STRING_BYTES}")
        return value

    def unpack(value: Any) -> Any:
        if type(value) is not str:
            raise Misfit(f"is {_kind(value)}, not a string")
        return value

    return Shape(pack, unpack)


def _exactly(kind: type) -> Shape:
    def check(value: Any) -> Any:
        if type(value) is not kind:
            raise Misfit(f"is {_kind(value)}, not {kind.__name__}")
        return value

    return Shape(check, check)


def _optional(inner: Shape) -> Shape:
    return Shape(
        lambda value: None if value is None else inner.pack(value),
        lambda value: None if value is None else inner.unpack(value),
    )


# --- shapes of runs and lists -----------------------------------------------------------------------------------------


def _packed_numbers() -> Shape:
    def pack(value: Any) -> bytes:
        _require_tuple(value)
        if set(map(type, value)) - {int}:
            raise Misfit("holds something that is not a number")
        try:
            return struct.pack(f"<{len(value)}I", *value)
        except struct.error:
            raise Misfit(f"holds a number outside 0 to {MAX_PACKED_NUMBER}") from None

    def unpack(value: Any) -> tuple[int, ...]:
        if type(value) is not bytes or len(value) % 4:
            raise Misfit("is not a run of 32-bit numbers")
        return struct.unpack(f"<{len(value) // 4}I", value)

    return Shape(pack, unpack)


def _packed_floats() -> Shape:
    def check(value: tuple[float, ...]) -> tuple[float, ...]:
        if not all(map(math.isfinite, value)):
            raise Misfit("holds something that is not finite")
        return value

    def pack(value: Any) -> bytes:
        _require_tuple(value)
        if set(map(type, value)) - {float}:
            raise Misfit("holds something that is not a float")
        return struct.pack(f"<{len(value)}d", *check(value))

    def unpack(value: Any) -> tuple[float, ...]:
        if type(value) is not bytes or len(value) % 8:
            raise Misfit("is not a run of 64-bit floats")
        return check(struct.unpack(f"<{len(value) // 8}d", value))

    return Shape(pack, unpack)


def _packed_pairs() -> Shape:
    numbers = _packed_numbers()

    def pack(value: Any) -> bytes:
        _require_tuple(value)
        flat: list[Any] = []
        for pair in value:
            if type(pair) is not tuple or len(pair) != 2:
                raise Misfit("holds something that is not a pair")
            flat += pair
        return cast(bytes, numbers.pack(tuple(flat)))

    def unpack(value: Any) -> tuple[tuple[int, int], ...]:
        flat = numbers.unpack(value)
        if len(flat) % 2:
            raise Misfit("holds half a pair")
        return tuple(zip(flat[::2], flat[1::2], strict=True))

    return Shape(pack, unpack)


def _list_of(inner: Shape) -> Shape:
    def each(value: Any, convert: Callable[[Any], Any]) -> tuple[Any, ...]:
        _require_tuple(value)
        if len(value) > MAX_ITEMS:
            raise Misfit(f"has {len(value)} members; a list holds {MAX_ITEMS}")
        converted: list[Any] = []
        try:
            for item in value:
                converted.append(convert(item))  # noqa: PERF401 -- its length is the index in the error's sentence
        except Misfit as misfit:
            raise misfit.inside(f"[{len(converted)}]") from None
        return tuple(converted)

    return Shape(lambda value: each(value, inner.pack), lambda value: each(value, inner.unpack))


def _record_of(inners: tuple[Shape, ...]) -> Shape:
    def each(value: Any, converts: tuple[Callable[[Any], Any], ...]) -> tuple[Any, ...]:
        _require_tuple(value)
        if len(value) != len(converts):
            raise Misfit(f"has {len(value)} members, not {len(converts)}")
        return tuple(convert(item) for convert, item in zip(converts, value, strict=True))

    packs = tuple(inner.pack for inner in inners)
    unpacks = tuple(inner.unpack for inner in inners)
    return Shape(lambda value: each(value, packs), lambda value: each(value, unpacks))


def instance_of(kind: type) -> Shape:
    hints = get_type_hints(kind, include_extras=True)
    names = field_names(kind)
    shapes = tuple(shape_of(hints[name]) for name in names)
    packs = tuple(zip(names, (shape.pack for shape in shapes), strict=True))
    unpacks = tuple(zip(names, (shape.unpack for shape in shapes), strict=True))
    # attrgetter gives a bare value for one name and a tuple for several.
    values_of = attrgetter(*names) if len(names) > 1 else lambda instance: (getattr(instance, names[0]),)

    def pack(value: Any) -> list[Any]:
        if type(value) is not kind:
            raise Misfit(f"is {_kind(value)}, not {kind.__name__}")
        packed: list[Any] = []
        try:
            for (_, convert), item in zip(packs, values_of(value), strict=True):
                packed.append(convert(item))
        except Misfit as misfit:
            raise misfit.inside(f".{names[len(packed)]}") from None
        return packed

    def unpack(value: Any) -> Any:
        _require_tuple(value)
        if len(value) != len(names):
            raise Misfit(f"has {len(value)} fields, not {len(names)}")
        unpacked: dict[str, Any] = {}
        try:
            for (name, convert), item in zip(unpacks, value, strict=True):
                unpacked[name] = convert(item)
        except Misfit as misfit:
            raise misfit.inside(f".{names[len(unpacked)]}") from None
        return kind(**unpacked)

    return Shape(pack, unpack)


def field_names(kind: type) -> tuple[str, ...]:
    """Of a dataclass, or of a named tuple."""
    if is_dataclass(kind):
        return tuple(field.name for field in fields(kind))
    return cast("tuple[str, ...]", cast(Any, kind)._fields)


def _require_tuple(value: Any) -> None:
    if type(value) is not tuple:
        raise Misfit(f"is {_kind(value)}, not a list")


def _kind(value: Any) -> str:
    return "nothing" if value is None else f"a {type(value).__name__}"


# --- from annotations to shapes ---------------------------------------------------------------------------------------


def shape_of(annotation: Any) -> Shape:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated and SIGNED in annotation.__metadata__:
        return _number(-(2**63))
    if origin in (Union, UnionType):
        (inner,) = (argument for argument in arguments if argument is not NoneType)
        return _optional(shape_of(inner))
    if origin is tuple:
        return _shape_of_tuple(arguments)
    plain = {int: _number(0), float: _float(), str: _text(), bytes: _exactly(bytes), bool: _exactly(bool)}
    return plain[annotation] if annotation in plain else instance_of(annotation)


def _shape_of_tuple(arguments: tuple[Any, ...]) -> Shape:
    if arguments == (int, ...):
        return _packed_numbers()
    if arguments == (float, ...):
        return _packed_floats()
    if arguments == (tuple[int, int], ...):
        return _packed_pairs()
    if arguments[-1] is ...:
        return _list_of(shape_of(arguments[0]))
    return _record_of(tuple(shape_of(argument) for argument in arguments))
