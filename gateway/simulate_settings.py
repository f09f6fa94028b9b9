"""``sluicegate simulate --set name=value``: every limit by its name, each checked, and the set-up that they make."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from admission.limits import Limits
from admission.machines import Machine
from admission.order import ORDERS
from admission.presets import Preset, Progress, queue_order
from admission.standing import WaitingOrderName
from admission.trace_setup import TraceSetup
from gateway.simulate_errors import OptionError

NONE = "none"
EXACT = "exact"

ORDER_NAMES = tuple(order.value for order in WaitingOrderName if order is not WaitingOrderName.EDF)
"""A trace has no deadlines, so `edf` would be `fcfs`."""

DEFAULT_MAX_QUEUE = 256
DEFAULT_QUEUE_TOKENS = 1_000_000
DEFAULT_MAX_TOKENS = 2_048

_MOST = 1_000_000_000
"""Beyond any machine; numbers stay small enough that no sum of them is a burden."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One limit that ``--set`` knows."""

    parse: Callable[[str], Any]
    meaning: str


def _whole(least: int, most: int = _MOST) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not text.isascii() or not text.isdigit() or len(text) > 12 or not least <= int(text) <= most:
            raise OptionError(f"must be a whole number from {least} to {most}")
        return int(text)

    return parse


def _or_word(word: str, parse: Callable[[str], Any]) -> Callable[[str], Any]:
    def parse_either(text: str) -> Any:
        if text == word:
            return None
        try:
            return parse(text)
        except OptionError as error:
            raise OptionError(f"{error}, or '{word}'") from None

    return parse_either


def _one_of(names: Sequence[str]) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in names:
            raise OptionError(f"must be one of {', '.join(names)}")
        return text

    return parse


def _sizes(text: str) -> tuple[int, ...]:
    return tuple(_whole(1)(part) for part in text.split(",")) if text != NONE else ()


def _flag(text: str) -> bool:
    return _one_of(("true", "false"))(text) == "true"


TRACE_SETTINGS: Mapping[str, Setting] = {
    "max_slots": Setting(parse=_whole(1), meaning="sequences in the running batch"),
    "token_budget": Setting(parse=_or_word(NONE, _whole(1)), meaning="tokens per iteration"),
    "prefill_chunk": Setting(parse=_or_word(NONE, _whole(1)), meaning="prompt tokens of one sequence per iteration"),
    "kv_blocks": Setting(parse=_or_word(NONE, _whole(1, 10_000_000)), meaning="blocks in the KV pool"),
    "block_size": Setting(parse=_whole(1), meaning="tokens in a KV block"),
    "context_length": Setting(parse=_or_word(NONE, _whole(2)), meaning="prompt and output of one request"),
    "max_tokens": Setting(
        parse=_or_word(EXACT, _whole(1)), meaning="output that a request allows; more if it gave more; 'exact': as much"
    ),
    "max_queue": Setting(parse=_or_word(NONE, _whole(0)), meaning="requests that may wait"),
    "queue_tokens": Setting(parse=_or_word(NONE, _whole(0)), meaning="tokens that may wait, by expected output"),
    "max_passes": Setting(parse=_whole(0, 1_000), meaning="times that one that does not fit may be passed over"),
    "waiting_order": Setting(parse=_one_of(ORDER_NAMES), meaning=f"who goes first: {', '.join(ORDER_NAMES)}"),
    "preferred_sizes": Setting(parse=_sizes, meaning="request-dynamic: sizes at which a batch starts at once"),
    "max_queue_delay_ms": Setting(parse=_whole(0, 60_000), meaning="request-dynamic: how long a smaller batch waits"),
    "watermark_percent": Setting(parse=_whole(0, 99), meaning="share of the pool that admission leaves free"),
    "progress": Setting(parse=_one_of([*Progress]), meaning=f"what a preempted sequence keeps: {', '.join(Progress)}"),
    "pause_budget": Setting(parse=_or_word(NONE, _whole(0)), meaning="preemptions of one sequence at most"),
}
"""The limits of a trace. Defaults are the machine's and the preset's."""

SCENARIO_SETTINGS: Mapping[str, Setting] = {
    "max_active": Setting(parse=_whole(1), meaning="sequences in the running batch"),
    "max_queue": Setting(parse=_whole(0), meaning="requests that may wait"),
    "token_budget": Setting(parse=_whole(1), meaning="tokens per iteration"),
    "prefill_chunk": Setting(parse=_whole(1), meaning="prompt tokens of one request per iteration"),
    "max_iterations": Setting(parse=_whole(1), meaning="iterations after which the run ends"),
    "priority_preemption": Setting(parse=_flag, meaning="true or false: whether `high` may displace `normal`"),
}
"""The fields of a scenario's policy, set anew."""


def parse_changes(texts: Sequence[str], settings: Mapping[str, Setting]) -> dict[str, Any]:
    """The values of ``--set name=value``, by name. Raises ``OptionError``."""
    changes: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise OptionError(f"--set {text}: must be name=value")
        if name not in settings:
            raise OptionError(f"--set {text}: unknown name; known here are {', '.join(settings)}")
        if name in changes:
            raise OptionError(f"--set {text}: {name} is given twice")
        try:
            changes[name] = settings[name].parse(value)
        except OptionError as error:
            raise OptionError(f"--set {text}: {error}") from None
    return changes


def trace_values(preset: Preset, machine: Machine, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Every limit of a trace in force, by the names that ``--set`` has for them; None is 'none', or 'exact'."""
    return {
        "max_slots": machine.max_slots,
        "token_budget": machine.token_budget,
        "prefill_chunk": machine.prefill_chunk,
        "kv_blocks": machine.kv_blocks,
        "block_size": machine.block_size,
        "context_length": machine.context_length,
        "max_tokens": DEFAULT_MAX_TOKENS,
        "max_queue": DEFAULT_MAX_QUEUE,
        "queue_tokens": DEFAULT_QUEUE_TOKENS,
        "max_passes": preset.max_passes,
        "waiting_order": queue_order(preset).value,
        "preferred_sizes": (),
        "max_queue_delay_ms": 0,
        "watermark_percent": preset.watermark_percent,
        "progress": preset.progress.value,
        "pause_budget": preset.pause_budget,
        **changes,
    }


def trace_setup(preset: Preset, machine: Machine, changes: Mapping[str, Any]) -> TraceSetup:
    """What a trace runs under. Raises ``OptionError`` for limits that cannot work together."""
    values = trace_values(preset, machine, changes)
    if values["waiting_order"] in ORDERS and "waiting_order" in changes:  # tenants take turns in the queue alone
        preset = replace(preset, waiting_order=ORDERS[values["waiting_order"]])
    preset = replace(
        preset,
        watermark_percent=values["watermark_percent"],
        progress=Progress(values["progress"]),
        pause_budget=values["pause_budget"],
    )
    limits = Limits(
        max_slots=values["max_slots"],
        token_budget=values["token_budget"],
        prefill_chunk=values["prefill_chunk"],
        kv_blocks=values["kv_blocks"],
        block_size=values["block_size"],
        preferred_sizes=values["preferred_sizes"],
        max_queue_delay_us=values["max_queue_delay_ms"] * 1000,
    )
    try:
        return TraceSetup(
            preset=preset,
            limits=limits,
            cost=machine.cost,
            queue_order=WaitingOrderName(values["waiting_order"]),
            max_queue=values["max_queue"],
            queue_tokens=values["queue_tokens"],
            max_passes=values["max_passes"],
            context_length=values["context_length"],
            max_tokens=values["max_tokens"],
        )
    except ValueError as error:
        raise OptionError(f"--set: {error}") from None


def shown(name: str, value: Any) -> str:
    """A value as ``--set`` takes it."""
    if value is None:
        return EXACT if name == "max_tokens" else NONE
    if isinstance(value, tuple):
        return ",".join(map(str, value)) or NONE
    return str(value).lower() if isinstance(value, bool) else str(value)
