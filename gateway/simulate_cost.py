"""``sluicegate simulate --cost``: a machine by name, or a cost model given in numbers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from decimal import Decimal

from admission.cost import CostModel
from admission.machines import CPU_135M, MACHINES, Machine
from gateway.simulate_errors import OptionError

_COST_FIELDS: Mapping[str, tuple[str, int]] = {
    "base_ms": ("base_ns", 1_000_000),
    "decode_us": ("decode_ns", 1_000),
    "prefill_us": ("prefill_ns", 1_000),
    "kv_us_per_1k": ("kv_ns_per_1k", 1_000),
    "swap_us": ("swap_ns", 1_000),
}
"""Parameter of ``linear:`` -> field of the cost model, and nanoseconds in the parameter's unit."""

_DECIMAL = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?")


def parse_cost(text: str) -> Machine:
    """The machine that ``--cost`` names; limits are those of the default where only a cost is given."""
    kind, colon, rest = text.partition(":")
    if kind in MACHINES and not colon:
        return MACHINES[kind]
    if kind == "constant" and colon:
        cost = CostModel(base_ns=_scaled(text, "constant", rest, 1_000_000))
        return replace(CPU_135M, name=text, origin="as given; limits of cpu-135m", cost=cost)
    if kind == "linear":
        cost = replace(CPU_135M.cost, **_linear(text, rest)) if rest else CPU_135M.cost
        return replace(CPU_135M, name=text, origin="as given, the rest and limits of cpu-135m", cost=cost)
    raise OptionError(
        f"--cost {text}: must be {', '.join(MACHINES)}, constant:MS or linear:NAME=NUMBER,..."
        f" with names of {', '.join(_COST_FIELDS)}"
    )


def _linear(text: str, rest: str) -> dict[str, int]:
    values: dict[str, int] = {}
    for part in rest.split(","):
        name, equals, value = part.partition("=")
        if not equals or name not in _COST_FIELDS:
            raise OptionError(f"--cost {text}: {part!r} must be name=number, with a name of {', '.join(_COST_FIELDS)}")
        field, unit_ns = _COST_FIELDS[name]
        if field in values:
            raise OptionError(f"--cost {text}: {name} is given twice")
        values[field] = _scaled(text, name, value, unit_ns)
    return values


def _scaled(text: str, name: str, value: str, unit_ns: int) -> int:
    if not _DECIMAL.fullmatch(value):
        raise OptionError(f"--cost {text}: {name} must be a number from 0 to 999999999, not {value!r}")
    return round(float(value) * unit_ns)


def cost_option(cost: CostModel) -> str:
    """The cost model as ``--cost`` takes it, exactly."""
    parts = [f"{name}={Decimal(getattr(cost, field)) / unit_ns:f}" for name, (field, unit_ns) in _COST_FIELDS.items()]
    return "linear:" + ",".join(parts)


def cost_words(cost: CostModel) -> list[str]:
    """The cost model in the units of ``linear:``."""
    return [f"{name}={getattr(cost, field) / unit_ns:g}" for name, (field, unit_ns) in _COST_FIELDS.items()]
