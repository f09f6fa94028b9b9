"""Nobody waits for ever under aging: the stated bound, under a load that never lets up."""

from __future__ import annotations

from dataclasses import replace

from admission.limits import Limits
from admission.order import ORDERS
from admission.presets import SLUICEGATE, SlotPreemption
from tests.admission.drive import Harness, make_spec

ITERATIONS = 1_200
HEAD_START = 300
QUEUE = 50


def waits_under_load(order: str) -> list[int]:
    """Iterations that each low request that started has waited; one request runs per iteration.

    The high class alone brings 110 % of what can be served, and a low request comes every tenth iteration. What finds
    ``QUEUE`` waiting is rejected, as the store would.
    """
    preset = replace(SLUICEGATE, waiting_order=ORDERS[order], slot_preemption=SlotPreemption.NEVER)
    harness = Harness(Limits(max_slots=1, token_budget=1, prefill_chunk=None), preset)
    waits: list[int] = []
    for now in range(ITERATIONS):
        low = [make_spec(f"low{now}", prompt=1, output=1, rank=2, score=now)] if now % 10 == 0 else []
        names = [f"high{now}.{n}" for n in range(2 if now % 10 == 5 else 1)]
        high = [make_spec(name, prompt=1, output=1, rank=0, score=now - HEAD_START) for name in names]
        harness.claim(*[*low, *high][: max(0, QUEUE - len(harness.waiting))])
        (started,) = harness.in_flight[0].starts
        if started.sequence_id.startswith("low"):
            waits.append(now - harness.specs[started.sequence_id].score)
        harness.report()
    return waits


def test_a_low_request_waits_no_longer_than_the_head_start_and_a_full_queue() -> None:
    """E04: wait <= (greatest - own head start) + queue bound / starts per iteration, however high the load."""
    waits = waits_under_load("aging")
    assert len(waits) > 50
    assert max(waits) <= HEAD_START + QUEUE


def test_under_a_strict_order_the_same_load_breaks_the_bound() -> None:
    """E04: what aging is for: with strict classes a low request waits until the queue is full of its like."""
    assert max(waits_under_load("priority")) > HEAD_START + QUEUE
