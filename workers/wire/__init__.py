"""The wire: length-prefixed msgpack frames between gateways and workers, and between gateways.

A frame is a 4-byte big-endian length and one msgpack array ``[type number, field, field, ...]``: an explicit table maps
type numbers to messages, fields are positional and strictly typed, and no value can name code. Nothing in this package
imports more than the standard library and msgpack.

* ``messages.py``: what is said, and in which order.
* ``codec.py``: messages to msgpack and back.
* ``shapes.py``: how each field travels, checked against its annotation.
* ``framing.py``: frames out of a stream of bytes.
* ``address.py``: where a peer listens, and how it proves that it knows the secret.
"""

from workers.wire.address import Address, TcpAddress, UnixAddress, auth_digest, parse_address
from workers.wire.codec import WireError
from workers.wire.framing import MAX_FRAME_BYTES, FrameDecoder, decode, encode
from workers.wire.messages import (
    LOWEST_LOGPROB,
    MAX_TOP_LOGPROBS,
    WIRE_VERSION,
    Auth,
    BlockGrowth,
    CancelSequences,
    Challenge,
    Deliver,
    Delivery,
    Hello,
    Job,
    Logprobs,
    Message,
    ModelCard,
    NewSequence,
    PlanMessage,
    PrefillSpan,
    PromptNews,
    Refusal,
    ReportMessage,
    Sampling,
    Scores,
    TokenizerFiles,
    TokenizerRequest,
    Welcome,
)
from workers.wire.shapes import MAX_ITEMS

__all__ = [
    "LOWEST_LOGPROB",
    "MAX_FRAME_BYTES",
    "MAX_ITEMS",
    "MAX_TOP_LOGPROBS",
    "WIRE_VERSION",
    "Address",
    "Auth",
    "BlockGrowth",
    "CancelSequences",
    "Challenge",
    "Deliver",
    "Delivery",
    "FrameDecoder",
    "Hello",
    "Job",
    "Logprobs",
    "Message",
    "ModelCard",
    "NewSequence",
    "PlanMessage",
    "PrefillSpan",
    "PromptNews",
    "Refusal",
    "ReportMessage",
    "Sampling",
    "Scores",
    "TcpAddress",
    "TokenizerFiles",
    "TokenizerRequest",
    "UnixAddress",
    "Welcome",
    "WireError",
    "auth_digest",
    "decode",
    "encode",
    "parse_address",
]
