"""The messages of the wire: frozen values, no behaviour.

A field's annotation is its wire type (``codec.py`` reads it): numbers are not negative and below 2**63, save where they
are annotated ``SignedInt``; runs of numbers (``tuple[int, ...]``, ``tuple[tuple[int, int], ...]``) hold ids, slots and
blocks below 2**32, runs of floats (``tuple[float, ...]``) finite 64-bit floats. A peer of another ``WIRE_VERSION`` is
refused during the handshake: messages are never guessed at.

A connection to a worker: the worker sends ``Challenge``; the gateway answers ``Auth`` (an HMAC of the nonce under the
shared secret; the empty secret on a Unix socket); the worker sends ``Hello``; the gateway sends ``Welcome``. Then plans
go one way and reports the other, up to the welcome's ``max_in_flight`` plans at once. ``TokenizerRequest`` may be sent
at any time after ``Hello``. A gateway relays over the same frames: ``Challenge``, ``Auth``, then ``Deliver`` one way,
and ``CancelSequences`` the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, NamedTuple

WIRE_VERSION = 3

SIGNED = "signed"
"""Marks a number of the whole signed 64-bit range."""

SignedInt = Annotated[int, SIGNED]

MAX_TOP_LOGPROBS = 20
"""Likeliest tokens that may be asked for beside each token: OpenAI's bound."""

LOWEST_LOGPROB = -9999.0
"""Stands for a probability of zero, as in OpenAI's API: an infinite number has no place on the wire."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How to choose tokens. The random number of a token is a function of (seed, choice, output position) alone.

    In this order: ``logit_bias`` (id, value) is added; while the output has fewer than ``min_tokens``, no token that
    would end it may come; ``repetition_penalty`` divides or multiplies what prompt or output hold,
    ``frequency_penalty`` (for each time) and ``presence_penalty`` (once) are taken from what the output holds;
    ``temperature`` divides (0: greedy); ``min_p`` of the best token's probability, ``top_k`` tokens and the nucleus of
    ``top_p`` limit the choice.

    A token of ``stop_token_ids`` ends the output as an eos does. ``ignore_eos`` runs on past an eos.

    ``top_logprobs`` (at most ``MAX_TOP_LOGPROBS``; None: none at all) asks for the log-probability of each output token
    and of so many of the likeliest beside it, by the model's own logits, before all of the above; ``prompt_logprobs``
    the same for every prompt token but the first.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    seed: SignedInt = 0
    choice: int = 0
    ignore_eos: bool = False
    top_k: int | None = None
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    min_tokens: int = 0
    stop_token_ids: tuple[int, ...] = ()
    top_logprobs: int | None = None
    prompt_logprobs: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCard:
    """What a worker serves. ``context_length`` counts prompt and output; ``eos_ids`` end a sequence."""

    name: str
    context_length: int
    vocab_size: int
    eos_ids: tuple[int, ...]
    tokenizer_digest: str
    dtype: str
    device: str


# --- handshake --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Challenge:
    """Who accepts a connection speaks first. ``nonce`` is 32 random bytes."""

    version: int
    nonce: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Auth:
    """``digest`` is HMAC-SHA-256 of the nonce under the shared secret. ``peer`` names the dialling gateway."""

    version: int
    digest: bytes
    peer: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Sent before closing: why the peer is not served."""

    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """A worker presents itself: its model, its pool, and the last driver epoch that it saw.

    ``host_blocks``: KV blocks' worth of host memory that it keeps for sequences that are swapped out (0: it cannot
    swap).
    """

    worker_id: str
    card: ModelCard
    max_slots: int
    kv_blocks: int
    block_size: int
    last_epoch: int
    host_blocks: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Welcome:
    """The gateway drives this worker from now on, under ``epoch``; plans of a lower epoch are refused."""

    epoch: int
    max_in_flight: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerRequest:
    """Gateway to worker: send me the tokenizer of this digest."""

    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerFiles:
    """Files of a tokenizer by name (``tokenizer.json``, ``tokenizer_config.json``, ``chat_template.jinja`` ...)."""

    digest: str
    files: tuple[tuple[str, bytes], ...]


# --- plans and reports ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class NewSequence:
    """A sequence in full: it takes ``slot``.

    ``tokens`` is the prompt plus ``emitted`` output tokens that it already has; ``computed`` of them lie in ``blocks``,
    save the last ``swapped`` of these, which a former plan swapped out and which are copied there now: ``computed`` is
    then what was computed at that time, and ``computed - swapped`` fills whole blocks. ``max_tokens`` bounds its output
    in all.
    """

    slot: int
    sequence_id: str
    tokens: tuple[int, ...]
    emitted: int
    computed: int
    max_tokens: int
    sampling: Sampling
    blocks: tuple[int, ...]
    swapped: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillSpan:
    """Compute tokens ``start .. start + length`` of the sequence in ``slot``; ``emits``: sample after the last one."""

    slot: int
    start: int
    length: int
    emits: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockGrowth:
    """Append ``blocks`` to the block table of ``slot``."""

    slot: int
    blocks: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanMessage:
    """One iteration: apply ``frees``, ``starts``, ``grows``, ``copies`` (block to block), then run one forward pass.

    Before all that, ``drops`` names sequences that were swapped out and are not wanted any more, and ``swap_outs``
    slots, all of them in ``frees``, whose KV is kept in host memory under their sequence's id: until a start takes it
    back, it is dropped, or the link is lost. A sequence that sampled an eos or its last token in an earlier plan is
    skipped, although named here.
    """

    step: int
    epoch: int
    frees: tuple[int, ...]
    starts: tuple[NewSequence, ...]
    grows: tuple[BlockGrowth, ...]
    copies: tuple[tuple[int, int], ...]
    prefill: tuple[PrefillSpan, ...]
    decode: tuple[int, ...]
    swap_outs: tuple[int, ...] = ()
    drops: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Logprobs:
    """Log-probabilities of consecutive tokens of the sequence in ``slot``, the first at ``start`` of prompt and output.

    ``own`` has each token's own. ``top_ids`` and ``top`` have the likeliest beside it, best first, as many for every
    token as were asked for, token after token. What was reported before comes again when a prompt is computed again.
    """

    slot: int
    start: int
    own: tuple[float, ...]
    top_ids: tuple[int, ...]
    top: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportMessage:
    """What came of a plan. ``tokens`` has (slot, token id) for each emission, decodes first, in plan order.

    ``finished`` has (slot, reason) with reason ``stop`` (its token is an eos or a stop id), ``length`` or ``failed``.
    ``logprobs`` has those that were asked for, of prompt tokens computed and of tokens emitted. ``host_blocks`` counts
    the blocks' worth of host memory that swapped sequences take. Times are microseconds: ``busy_us`` in this iteration,
    ``idle_us`` waiting for this plan after the last one ended.
    """

    step: int
    epoch: int
    tokens: tuple[tuple[int, int], ...]
    finished: tuple[tuple[int, str], ...]
    live_blocks: int
    busy_us: int
    idle_us: int
    logprobs: tuple[Logprobs, ...] = ()
    host_blocks: int = 0


# --- between gateways -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The payload of a queue entry: all that a driver needs to run a sequence for an origin.

    ``origin`` is the relay address of the gateway that holds the client. ``request_id`` is what that client was told,
    for logs.
    """

    sequence_id: str
    origin: str
    class_name: str
    rank: int
    prompt_ids: tuple[int, ...]
    emitted_ids: tuple[int, ...]
    max_tokens: int
    expected_tokens: int
    sampling: Sampling
    deadline_us: int | None
    request_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """Log-probabilities of consecutive tokens, as in ``Logprobs``."""

    own: tuple[float, ...]
    top_ids: tuple[int, ...]
    top: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptNews:
    """What is told of a prompt, once: its log-probabilities as they are computed, then with the first token the rest.

    ``scores`` are those of its tokens from ``start`` on. ``cached_tokens`` of it were not computed when it first
    started, as their KV was there.
    """

    cached_tokens: int = 0
    start: int = 0
    scores: Scores | None = None


class Delivery(NamedTuple):
    """Output of one sequence: ``token_ids`` from output position ``position`` on.

    ``finish`` is ``stop`` or ``length``; ``error`` a reason of the gateway's table; both empty while it goes on.
    ``stop_id`` is the one of the sampling's stop ids that ended it.
    ``scores`` has the log-probabilities of ``token_ids`` where they are asked for.

    One is made for every token of every stream, and a tuple is made in a third of the time of a frozen dataclass.
    """

    sequence_id: str
    position: int
    token_ids: tuple[int, ...]
    finish: str = ""
    error: str = ""
    scores: Scores | None = None
    prompt: PromptNews | None = None
    stop_id: int | None = None

    @property
    def is_tokens_alone(self) -> bool:
        """Whether it says nothing but ``token_ids``, as almost every one does."""
        return not (self.finish or self.error) and self.scores is None and self.prompt is None


@dataclass(frozen=True, slots=True, kw_only=True)
class Deliver:
    """Driver to origin: one message per iteration and origin."""

    driver: str
    deliveries: tuple[Delivery, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelSequences:
    """Origin to driver: nobody wants these any more."""

    sequence_ids: tuple[str, ...]


Message = (
    Challenge
    | Auth
    | Refusal
    | Hello
    | Welcome
    | TokenizerRequest
    | TokenizerFiles
    | ModelCard
    | PlanMessage
    | ReportMessage
    | Job
    | Deliver
    | CancelSequences
)
"""What a frame may hold; the other classes here are parts of these."""
