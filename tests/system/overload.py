"""A worker offered several times what it can serve: who is served how fast, and what becomes of the rest.

The scripted worker makes the figures ones of scheduling: an iteration takes a scripted time, long beside what the
processes take, and each request the same number of iterations. Arrivals are open-loop, a Poisson process of a seed.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.system.cluster import Cluster, script, start_cluster
from tests.system.load import ECHOING, Outcome, Shot, fire

SLOTS = 32
ITERATION_S = 0.1
OUTPUT_TOKENS = 5
CAPACITY_PER_S = SLOTS / ((OUTPUT_TOKENS + 1) * ITERATION_S)
"""53 requests per second. A prompt is one iteration, which gives the first token; and as two plans are in flight, a
slot is empty for one between two sequences. Of three times this a fifth is interactive: that alone hardly ever wants
more than all slots, when no order of service could help.
"""

QUEUE = 48
HEAD_START_S = 5.0
INTERACTIVE_SHARE = 0.2

WORKER = script(output={"kind": "echo"}, delays={"base_us": round(ITERATION_S * 1_000_000)}, slots=SLOTS, blocks=4096)
CLASSES = f"""
[interactive]
rank = 0
head-start-s = {HEAD_START_S}
service-tier = "priority"
max-priority = 0
sheds = true

[batch]
rank = 1
service-tier = "default"
sheddable = true
"""
"""The default classes' aging bound is longer than the run; this one is within it, and longer than batch waits here for
its turn: what has aged past it goes before newcomers of any class."""


@asynccontextmanager
async def overload_cluster(folder: Path) -> AsyncIterator[Cluster]:
    """One gateway with the default preset over one worker of ``CAPACITY_PER_S``."""
    classes = folder / "classes.toml"
    classes.write_text(CLASSES)
    flags = ("--fake-worker", WORKER, "--queue-requests", str(QUEUE), "--classes", str(classes))
    async with start_cluster(folder, *flags) as cluster:
        yield cluster


async def offer(
    cluster: Cluster,
    *,
    per_s: float,
    seconds: float,
    seed: int,
    model: str = ECHOING,
    max_tokens: int = OUTPUT_TOKENS,
) -> Service:
    """So many requests per second, for so long, and what came of them."""
    url, chance, at_s, shots = f"{cluster.base_url}/completions", random.Random(seed), 0.0, []
    while (at_s := at_s + chance.expovariate(per_s)) < seconds:
        class_name = "interactive" if chance.random() < INTERACTIVE_SHARE else "batch"
        name = f"o{seed}r{len(shots):05}"
        shots.append(Shot(name=name, url=url, at_s=at_s, class_name=class_name, model=model, max_tokens=max_tokens))
    return Service(outcomes=tuple(await fire(shots, processes=2)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """What came of one run."""

    outcomes: tuple[Outcome, ...]

    def told(self, class_name: str) -> Counter[str]:
        """How many of the class were served, and how many refused for which reason."""
        return Counter("served" if o.is_served else o.code for o in self.outcomes if o.shot.class_name == class_name)

    def first_token_s(self, class_name: str) -> list[float]:
        """Of those served, in ascending order."""
        served = [o for o in self.outcomes if o.shot.class_name == class_name and o.is_served]
        return sorted(outcome.first_s for outcome in served if outcome.first_s is not None)

    @property
    def served_per_s(self) -> float:
        """From the first arrival to the last answer."""
        ends = [outcome.shot.at_s + outcome.end_s for outcome in self.outcomes if outcome.is_served]
        return len(ends) / (max(ends) - min(outcome.shot.at_s for outcome in self.outcomes))

    def lines(self) -> Iterable[str]:
        """The figures, to print."""
        for class_name in ("interactive", "batch"):
            told, times = self.told(class_name), self.first_token_s(class_name)
            yield (
                f"{class_name:>12}: first token p50 {_ms(percentile(times, 50))} p99 {_ms(percentile(times, 99))}"
                f" most {_ms(times[-1])}, {dict(told)}"
            )
        yield f"{'all':>12}: {self.served_per_s:.1f} served per second"


STARVED = (503, "store_unavailable")
"""What a machine that others keep busy may do to an act on Redis: it takes more than a second."""


def percentile(ascending: Sequence[float], percent: int) -> float:
    """The nearest rank."""
    return ascending[max(0, math.ceil(len(ascending) * percent / 100) - 1)]


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms"


def check_answers(service: Service) -> None:
    """What must hold however slow the machine is: an answer, or a refusal that says so. Nobody is left waiting."""
    for outcome in service.outcomes:
        is_told = outcome.is_served or outcome.is_refused or (outcome.status, outcome.code) == STARVED
        assert is_told, f"neither served nor clearly refused: {outcome}"


def check_overload(at_half: Service, overloaded: Service) -> None:
    """What must hold of a run at half load and one far above capacity, on a machine that others leave alone."""
    for outcome in (*at_half.outcomes, *overloaded.outcomes):
        assert outcome.is_served or outcome.is_refused, f"neither served nor clearly refused: {outcome}"
    for service in (at_half, overloaded):
        assert set(service.told("interactive")) == {"served"}, "a full queue of batch is no reason to refuse"
    usual_s = percentile(at_half.first_token_s("interactive"), 99)
    assert percentile(overloaded.first_token_s("interactive"), 99) <= 1.5 * usual_s
    batch = overloaded.told("batch")
    assert batch["served"] > 0
    assert batch.total() > batch["served"], "it is an overload"
    longest_s = overloaded.first_token_s("batch")[-1]
    assert longest_s <= HEAD_START_S + QUEUE / overloaded.served_per_s + usual_s, "aging bounds the wait"
