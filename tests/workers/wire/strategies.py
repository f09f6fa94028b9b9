"""Hypothesis strategies for every message, derived from the same annotations that the codec reads."""

from __future__ import annotations

from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from hypothesis import strategies as st

from workers.wire import Message
from workers.wire.codec import MESSAGE_TYPES
from workers.wire.shapes import field_names

_PLAIN: dict[Any, st.SearchStrategy[Any]] = {
    int: st.integers(0, 2**63 - 1),
    float: st.floats(allow_nan=False, allow_infinity=False),
    str: st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
    bytes: st.binary(max_size=40),
    bool: st.booleans(),
}
_PACKED = st.integers(0, 2**32 - 1)


def of_annotation(annotation: Any) -> st.SearchStrategy[Any]:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return st.integers(-(2**63), 2**63 - 1)
    if origin in (Union, UnionType):
        return st.one_of(*(st.none() if part is NoneType else of_annotation(part) for part in arguments))
    if origin is tuple and arguments[-1] is ...:
        member = _PACKED if arguments[0] is int else of_annotation(arguments[0])
        if arguments[0] == tuple[int, int]:
            member = st.tuples(_PACKED, _PACKED)
        return st.lists(member, max_size=5).map(tuple)
    if origin is tuple:
        return st.tuples(*(of_annotation(part) for part in arguments))
    return _PLAIN[annotation] if annotation in _PLAIN else of_class(annotation)


def of_class(kind: type) -> st.SearchStrategy[Any]:
    hints = get_type_hints(kind, include_extras=True)
    return st.builds(kind, **{name: of_annotation(hints[name]) for name in field_names(kind)})


def messages() -> st.SearchStrategy[Message]:
    return st.one_of(*(of_class(kind) for kind in MESSAGE_TYPES.values()))
