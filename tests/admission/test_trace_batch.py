"""The worker of a simulated trace, plan by plan."""

from __future__ import annotations

from admission.cost import Work
from admission.events import Plan, Prefill, Start
from admission.trace_batch import TraceBatch
from admission.trace_csv import Arrival
from admission.trace_rows import Gap, RequestRecord


def record(name: str, *, prompt: int, output: int) -> RequestRecord:
    arrival = Arrival(request_id=name, arrival_us=0, prompt_tokens=prompt, output_tokens=output)
    return RequestRecord(arrival=arrival, arrived_in=0)


def start(slot: int, name: str) -> Start:
    return Start(slot=slot, sequence_id=name, blocks=())


def test_a_sequence_left_out_of_a_plan_is_held_back_and_ends_later() -> None:
    """The scheduler promises that this does not happen; the simulator sees it if it does, and stays right."""
    records = {name: record(name, prompt=4, output=3) for name in ("a", "b")}
    batch = TraceBatch()
    chunk = Prefill(slot=0, start=0, length=4, emits=True)
    first = Plan(step=0, starts=(start(0, "a"),), prefill=(chunk,))
    assert batch.apply(first, records, 0) == 0
    assert batch.execute(first, 0, 10, 10) == ([], [])
    decode = Plan(step=1, decode=(0,))
    assert batch.apply(decode, records, 1) == 0
    assert batch.work(decode) == Work(decode_tokens=1, kv_tokens=5)
    assert batch.execute(decode, 1, 20, 10) == ([Gap("standard", 1, 10, 1)], [])
    without = Plan(step=2, starts=(start(1, "b"),), prefill=(Prefill(slot=1, start=0, length=4, emits=True),))
    assert batch.apply(without, records, 2) == 1
    assert batch.work(without) == Work(prefill_tokens=4, kv_tokens=4)
    assert batch.execute(without, 2, 30, 10) == ([], [])
    both = Plan(step=3, decode=(0, 1))
    assert batch.apply(both, records, 3) == 0
    assert batch.work(both) == Work(decode_tokens=2, kv_tokens=6 + 5)
    gaps, finished = batch.execute(both, 3, 40, 10)
    assert gaps == [Gap("standard", 2, 20, 1), Gap("standard", 1, 10, 1)]
    assert [running.request_id for running in finished] == ["a"]
