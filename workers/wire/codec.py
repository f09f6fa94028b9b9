"""Messages to msgpack and back, strictly: what a dataclass's annotations say is what a frame may hold.

``MESSAGE_TYPES`` is the only way from a number to a class; ``shapes.py`` checks the fields. A bad value fails in the
sender that made it, by name; a bad frame fails in the receiver before any of it is used; both as ``WireError``.

msgpack reserves an array's declared length before reading it, level by level. So no array may declare more than
``MAX_ITEMS``, which bounds what a hostile frame can make a reader allocate.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, cast

import msgpack

from workers.wire import messages
from workers.wire.messages import Message
from workers.wire.shapes import MAX_ITEMS, MAX_STRING_BYTES, Misfit, instance_of

MESSAGE_TYPES: Mapping[int, type[Message]] = MappingProxyType(
    {
        1: messages.Challenge,
        2: messages.Auth,
        3: messages.Refusal,
        4: messages.Hello,
        5: messages.Welcome,
        6: messages.TokenizerRequest,
        7: messages.TokenizerFiles,
        8: messages.ModelCard,
        16: messages.PlanMessage,
        17: messages.ReportMessage,
        32: messages.Job,
        33: messages.Deliver,
        34: messages.CancelSequences,
    }
)


class WireError(Exception):
    """A frame that cannot be decoded, or a value that cannot be encoded; the text is one sentence."""


def pack_message(message: Message) -> bytes:
    """One message as a msgpack array. Raises ``WireError``."""
    known = _BY_CLASS.get(type(message))
    if known is None:
        raise WireError(f"{type(message).__name__} is not a message of the wire")
    number, shape = known
    try:
        return cast(bytes, msgpack.packb((number, *shape.pack(message))))
    except Misfit as misfit:
        raise WireError(f"{type(message).__name__}{misfit.path} {misfit.problem}") from None
    except (ValueError, TypeError, OverflowError) as error:
        raise WireError(f"{type(message).__name__} cannot be encoded: {error}") from None


def unpack_message(payload: bytes | bytearray) -> Message:
    """The inverse of ``pack_message``. Raises ``WireError``, and nothing else, whatever the bytes."""
    values = _unpack_plain(payload)
    if type(values) is not tuple or not values or type(values[0]) is not int:
        raise WireError("a frame is not an array that begins with a message type")
    known = _BY_NUMBER.get(values[0])
    if known is None:
        raise WireError(f"{values[0]} is not a known message type")
    name, shape = known
    try:
        return cast(Message, shape.unpack(values[1:]))
    except Misfit as misfit:
        raise WireError(f"{name}{misfit.path} {misfit.problem}") from None


def _unpack_plain(payload: bytes | bytearray) -> Any:
    try:
        return msgpack.unpackb(
            payload,
            use_list=False,
            raw=False,
            max_array_len=MAX_ITEMS,
            max_map_len=0,
            max_ext_len=0,
            max_str_len=MAX_STRING_BYTES,
        )
    except (ValueError, TypeError, msgpack.UnpackException, RecursionError) as error:
        raise WireError(f"a frame is not one msgpack value: {error or type(error).__name__}") from None


_SHAPES = {number: (kind, instance_of(kind)) for number, kind in MESSAGE_TYPES.items()}
_BY_NUMBER = {number: (kind.__name__, shape) for number, (kind, shape) in _SHAPES.items()}
_BY_CLASS = {kind: (number, shape) for number, (kind, shape) in _SHAPES.items()}
