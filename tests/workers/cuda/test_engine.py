"""The engine of the GPU, on a CPU: it keeps the contract, and begun ahead of its reports its tokens are the same."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, PreTrainedModel

from admission.limits import Limits
from tests.workers.cuda.engines import KERNEL, Ahead, overlapping_engine
from tests.workers.engine_support import NOTHING, reference_output, ties_between
from tests.workers.executor_contract import ExecutorContract
from tests.workers.gateway_end import GatewayEnd
from tests.workers.planner import GREEDY, Planner, Request, Running
from tests.workers.random_plans import RandomPlans
from tests.workers.scheduled import ScheduledRun
from tests.workers.test_engine_plans import REQUESTS, RICH
from tests.workers.tiny_models import CONFIGS, FEW, VOCAB_SIZE, save_tiny_model
from workers.cuda.decodes import Decodes
from workers.cuda.engine import OverlappingEngine
from workers.executor import Executor
from workers.listener import listen, stop_listening
from workers.overlap import OverlappingExecutor
from workers.server import Server
from workers.wire import ReportMessage, Sampling, UnixAddress

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]

random_plans = settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
chosen_requests = st.lists(st.integers(0, len(REQUESTS) - 1), min_size=5, max_size=9)

WAYS = [(name, kernel) for name in FEW for kernel in (None, KERNEL) if kernel is None or "soft caps" not in name]


class Pair:
    """An engine, and the same model as transformers runs it."""

    def __init__(self, engine: OverlappingEngine, reference: PreTrainedModel) -> None:
        self.engine = engine
        self.reference = reference
        self.expected = [reference_output(reference, request) for request in REQUESTS]

    def compare(self, chosen: list[int], outputs: list[list[int]]) -> None:
        for number, output in zip(chosen, outputs, strict=True):
            if ties_between(self.reference, REQUESTS[number], output, self.expected[number]):
                print("a tie")


@pytest.fixture(scope="module", params=WAYS, ids=lambda way: f"{way[0]}-{'varlen' if way[1] else 'gather'}")
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    name, kernel = request.param
    folder = save_tiny_model(tmp_path_factory.mktemp("model"), CONFIGS[name])
    reference = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    return Pair(overlapping_engine(folder, kernel=kernel), reference)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> OverlappingEngine:
    folder = save_tiny_model(tmp_path_factory.mktemp("model"), CONFIGS["llama"])
    return overlapping_engine(folder, kernel=KERNEL, max_slots=4, kv_blocks=64)


class TestOverlappingEngine(ExecutorContract):
    @pytest.fixture
    def executor(self, llama: OverlappingEngine) -> Iterator[Executor]:
        yield llama
        llama.reset()


# --- the same tokens --------------------------------------------------------------------------------------------------


@random_plans
@given(chosen=chosen_requests, seed=st.integers(0, 2**32))
def test_tokens_are_exact_under_recompute_swap_sharing_and_any_chunks(pair: Pair, chosen: list[int], seed: int) -> None:
    """Both ways to attend, for ordinary steps and padded decodes, against the dense model."""
    pair.engine.reset()
    lives = RandomPlans(pair.engine, Random(seed)).run([REQUESTS[number] for number in chosen])
    pair.compare(chosen, [life.output for life in lives])


def test_tokens_are_exact_when_steps_begin_before_the_last_is_read(pair: Pair) -> None:
    """The real scheduler two plans deep, with preemptions; some sequences end by an eos that comes too late to know."""
    done: Counter[str] = Counter()

    @random_plans
    @given(chosen=chosen_requests, seed=st.integers(0, 2**32))
    def check(chosen: list[int], seed: int) -> None:
        pair.engine.reset()
        run = scheduled(pair.engine, Random(seed))
        outputs = run.run([REQUESTS[number] for number in chosen])
        pair.compare(chosen, outputs)
        done["pause"] += run.pauses
        done["eos"] += sum(len(out) < REQUESTS[number].max_tokens for number, out in zip(chosen, outputs, strict=True))

    check()
    print(dict(done))
    assert done["pause"] > 0


def scheduled(engine: OverlappingEngine, random: Random) -> ScheduledRun:
    limits = Limits(
        max_slots=random.randint(3, 5),
        token_budget=random.randint(8, 40),
        prefill_chunk=random.choice((1, 3, 16, None)),
        kv_blocks=random.randint(15, 18),
        block_size=engine.block_size,
        max_in_flight=2,
    )
    return ScheduledRun(Ahead(engine), random, preset_name="sluicegate", limits=limits)  # type: ignore[arg-type]  # what it uses of an engine


@random_plans
@given(chosen=chosen_requests, seed=st.integers(0, 2**32))
def test_seeded_sampling_is_exact_when_steps_begin_ahead(pair: Pair, chosen: list[int], seed: int) -> None:
    """Temperature and a nucleus are drawn ahead; penalties wait for the tokens that they look at."""
    plain = Sampling(temperature=0.8, top_p=0.9, top_k=40, min_tokens=4)
    requests = [
        replace(REQUESTS[number], sampling=replace(RICH if number % 2 else plain, seed=number)) for number in chosen
    ]
    pair.engine.reset()
    alone = [RandomPlans(pair.engine, Random(seed)).run([request])[0].output for request in requests]
    pair.engine.reset()
    assert scheduled(pair.engine, Random(seed)).run(requests) == alone


def test_decodes_are_padded_and_were_so_here(llama: OverlappingEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or the tests above would have shown nothing of buckets."""
    rows: list[tuple[int, int]] = []
    logits = Decodes.logits

    def noting(self: Decodes, works: list[object], tables: object, bucket: object) -> object:
        rows.append((len(works), bucket.rows))  # type: ignore[attr-defined]  # a Bucket
        return logits(self, works, tables, bucket)  # type: ignore[arg-type]  # as they came

    monkeypatch.setattr(Decodes, "logits", noting)
    planner = Planner(llama)
    planner.iterate(starts=[Request(prompt=(5, 6, 7 + salt), max_tokens=3) for salt in range(3)])
    planner.finish()
    assert rows == [(3, 4), (3, 4)]


# --- what is known too late -------------------------------------------------------------------------------------------


def begin_all(engine: OverlappingEngine, planner: Planner, *, steps: int) -> None:
    for _ in range(steps):
        engine.begin(planner.plan())


def test_reports_ahead_are_those_of_an_engine_that_waits(llama: OverlappingEngine) -> None:
    """Three steps begun at once; each report says what was so when its plan was made."""
    request = Request(prompt=(5, 6, 7), max_tokens=4)
    planner = Planner(llama)
    planner.iterate(starts=[request])
    waiting = [planner.iterate() for _ in range(3)]
    llama.reset()
    planner = Planner(llama)
    planner.iterate(starts=[request])
    begin_all(llama, planner, steps=3)
    ahead = [llama.complete() for _ in range(3)]
    assert ahead == waiting
    assert ahead[2].finished == ((0, "length"),)
    llama.reset()


def test_a_token_after_an_eos_is_dropped(llama: OverlappingEngine) -> None:
    """The step was begun before anybody could know; its report says nothing of the sequence that had ended."""
    request = Request(prompt=(5, 6, 7), max_tokens=6)
    planner = Planner(llama)
    planner.iterate(starts=[request])
    running = planner.running()[0]
    while running.finish is None:
        planner.iterate()
    output = running.output
    llama.reset()
    stop = output[1]
    assert stop not in output[:1]
    planner = Planner(llama)
    stopping = replace(request, sampling=replace(GREEDY, stop_token_ids=(stop,)))
    planner.iterate(starts=[stopping, Request(prompt=(9, 9))])
    begin_all(llama, planner, steps=3)
    first, second, third = (llama.complete() for _ in range(3))
    assert ((0, stop) in first.tokens, first.finished) == (True, ((0, "stop"),))
    assert [[slot for slot, _ in report.tokens] for report in (second, third)] == [[1], [1]]
    assert second.finished == ()
    llama.reset()


def test_a_slot_that_is_given_away_before_its_last_token_is_read(llama: OverlappingEngine) -> None:
    """The token belongs to the one who had it; the newcomer's are the newcomer's."""
    newcomer = Request(prompt=(30, 31, 32, 33), max_tokens=3)
    planner = Planner(llama)
    planner.iterate(starts=[newcomer])
    alone = finish(llama, planner)
    planner = Planner(llama)
    planner.iterate(starts=[Request(prompt=(5, 6, 7), max_tokens=9) for _ in range(4)])
    begin_all(llama, planner, steps=1)
    victim = planner.running()[0]
    llama.begin(planner.plan(frees=[victim], starts=[newcomer]))
    report = llama.complete()
    assert [slot for slot, _ in report.tokens] == [0, 1, 2, 3]
    planner.take(llama.complete())
    mine = planner.running()[-1]
    assert mine.slot == victim.slot
    while mine.finish is None:
        planner.iterate()
    assert mine.output == alone
    llama.reset()


def finish(engine: OverlappingEngine, planner: Planner) -> list[int]:
    running: Running = planner.running()[0]
    while running.finish is None:
        planner.iterate()
    engine.reset()
    return running.output


@pytest.mark.parametrize("bad", [Request(prompt=(5, VOCAB_SIZE)), Request(prompt=(5,), sampling=Sampling(top_p=-1.0))])
def test_a_sequence_that_cannot_be_computed_fails_alone(llama: OverlappingEngine, bad: Request) -> None:
    """Plans that were begun before its report was read still name it, and leave it out."""
    planner = Planner(llama)
    llama.begin(planner.plan(starts=[Request(prompt=(5, 6)), bad]))
    llama.begin(planner.plan())
    first, second = llama.complete(), llama.complete()
    assert first.finished == ((1, "failed"),)
    assert [slot for slot, _ in second.tokens] == [0]
    llama.reset()


def test_broken_numbers_end_their_sequence_alone_and_late(llama: OverlappingEngine) -> None:
    """That they are none is known when they are read; a step more was begun on them, and hurts nobody."""
    embedding = llama._model.module.get_input_embeddings().weight
    head = torch.nn.Parameter(embedding.clone(), requires_grad=False)
    kept = llama._model.module.lm_head.weight
    llama._model.module.lm_head.weight = head  # untied, or every row of logits would hold the NaN
    row = embedding[50].clone()
    sound = Request(prompt=(5, 6), sampling=replace(GREEDY, logit_bias=((50, -1e9),)))
    planner = Planner(llama)
    planner.iterate(starts=[sound])
    alone = finish(llama, planner)
    embedding[50] = float("nan")
    try:
        planner = Planner(llama)
        llama.begin(planner.plan(starts=[Request(prompt=(5, 50, 6)), sound]))
        llama.begin(planner.plan())
        first, second = llama.complete(), llama.complete()
        assert first.finished == ((0, "failed"),)
        assert [slot for slot, _ in second.tokens] == [1]
        planner.take(first)
        planner.take(second)
        sounding = planner.running()[1]
        while sounding.finish is None:
            planner.iterate(frees=[running for running in planner.running() if running.finish == "failed"])
        assert sounding.output == alone
    finally:
        embedding[50] = row
        llama._model.module.lm_head.weight = kept
        llama.reset()


def test_scores_and_penalties_wait_and_the_reports_stay_in_order(llama: OverlappingEngine) -> None:
    """A step that has to read is computed at once; those before it were read for it, those after it overlap again."""
    scored = Request(prompt=(5, 6, 7), max_tokens=5, sampling=replace(GREEDY, top_logprobs=2))
    planner = Planner(llama)
    llama.begin(planner.plan(starts=[Request(prompt=(8, 9), max_tokens=5)]))
    llama.begin(planner.plan())
    llama.begin(planner.plan(starts=[scored]))
    begin_all(llama, planner, steps=1)
    reports = [llama.complete() for _ in range(4)]
    assert [report.step for report in reports] == [1, 2, 3, 4]
    assert [len(report.tokens) for report in reports] == [1, 1, 2, 2]
    assert [len(report.logprobs) for report in reports] == [0, 0, 1, 1]
    llama.reset()


def test_a_server_begins_its_plans_ahead(llama: OverlappingEngine, tmp_path: Path) -> None:
    """Over the wire, two plans in flight, with the thread that waits for the device between them."""
    assert isinstance(llama, OverlappingExecutor)
    request = Request(prompt=(5, 6, 7), max_tokens=9)
    planner = Planner(llama)
    planner.iterate(starts=[request])
    expected = finish(llama, planner)
    address = UnixAddress(str(tmp_path / "worker.sock"))
    listener = listen(address)
    server = Server(llama, listener=listener, worker_id="worker-0", secret=b"")
    thread = threading.Thread(target=server.run)
    thread.start()
    end = GatewayEnd(Path(address.path))
    try:
        end.drive(epoch=1)
        planner = Planner(llama)
        end.send(planner.plan(starts=[request]), planner.plan())
        running = planner.running()[0]
        while running.finish is None:
            planner.take(end.receive(ReportMessage))
            end.send(planner.plan())
        assert running.output == expected
    finally:
        end.close()
        server.stop()
        thread.join(timeout=5.0)
        stop_listening(listener, address)
        llama.reset()


def test_reset_forgets_what_was_begun(llama: OverlappingEngine) -> None:
    """The next driver gets no report of the last one's plans."""
    planner = Planner(llama)
    llama.begin(planner.plan(starts=[Request(prompt=(5, 6))]))
    llama.reset()
    assert llama.execute(NOTHING).live_blocks == 0
