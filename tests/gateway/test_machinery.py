"""Requests for several sequences, and what is told beside their tokens, through the machinery of whole gateways."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from admission.keys import QueueKeys
from admission.presets import SLUICEGATE, KvAdmission
from admission.queue import MAX_GROUP, QueueBounds
from gateway.clock import monotonic_us
from gateway.dispatch import MOST_PROMPT_LOGPROBS, SequenceRequest, TokenLogprob, Tokens
from gateway.errors import Reason, Refused
from gateway.frames import FrameConnection
from gateway.stream import Stream
from tests.gateway.small_cluster import choices, driver_and_origin, is_idle, member, nothing_waits, read_all, sequence
from tests.gateway.worker_peer import WorkerPeer
from tests.support import wait_until
from workers.fake import FakeExecutor, logprob_of
from workers.fake_script import Echo, FakeScript, Rule, Text, Words
from workers.wire import ReportMessage, Sampling

PROMPT = tuple(range(40, 60))
VOCABULARY = FakeExecutor(FakeScript()).card.vocab_size
SCORED = Sampling(ignore_eos=True, top_logprobs=2, prompt_logprobs=1)
TIGHT = replace(SLUICEGATE, kv_admission=KvAdmission.PROMPT, watermark_percent=0)  # starts whatever fits now


@pytest_asyncio.fixture
async def worker(run_dir: Path) -> AsyncIterator[WorkerPeer]:
    """A worker with four slots that says something else to each choice."""
    peer = WorkerPeer(FakeScript(output=Words(), slots=4, block_size=4))
    await peer.start(f"unix:{run_dir}/w0")
    yield peer
    peer.gate.set()
    await peer.kill()


async def read_each(streams: Sequence[Stream]) -> list[Tokens]:
    return list(await asyncio.gather(*[read_all(stream) for stream in streams]))


def scored(token_ids: Sequence[int], num_top: int) -> tuple[TokenLogprob, ...]:
    """What the scripted worker says of these tokens."""
    return tuple(
        TokenLogprob(
            own=logprob_of(token),
            top=tuple(((token + offset) % VOCABULARY, logprob_of(token) - offset) for offset in range(num_top)),
        )
        for token in token_ids
    )


# --- several sequences ------------------------------------------------------------------------------------------------


async def test_choices_of_one_prompt_compute_it_once(url: str, run_dir: Path, worker: WorkerPeer) -> None:
    """The first computes the prompt, the others find its full blocks, and each goes its own way from there."""
    async with member(url, run_dir, workers=(worker.address,)) as gateway:
        await gateway.ready()
        streams = await gateway.submit_all(*choices(4, prompt_ids=PROMPT, max_tokens=12))
        answers = await read_each(streams)
        assert [(len(answer.token_ids), answer.finish) for answer in answers] == [(12, "length")] * 4
        assert len({answer.token_ids for answer in answers}) == 4
        assert [stream.cached_tokens for stream in streams] == [0, 16, 16, 16], "four blocks of its five"
        assert gateway.value("sluicegate_prompt_tokens_total") == 20 + 3 * 4
        await wait_until(lambda: is_idle(gateway), "everything is free again")


async def test_several_prompts_are_answered_in_their_order(url: str, run_dir: Path) -> None:
    """Prompt after prompt, however they were batched, and more of them than there are slots."""
    peer = WorkerPeer(FakeScript(output=Echo(kind="echo"), slots=2))
    await peer.start(f"unix:{run_dir}/w0")
    async with member(url, run_dir, workers=(peer.address,)) as gateway:
        await gateway.ready()
        prompts = [tuple(range(40 + number, 46 + number)) for number in range(5)]
        streams = await gateway.submit_all(*[sequence(prompt_ids=prompt, max_tokens=6) for prompt in prompts])
        assert [answer.token_ids for answer in await read_each(streams)] == prompts
    await peer.kill()


async def test_a_request_waits_whole_or_is_refused_whole(
    url: str, run_dir: Path, worker: WorkerPeer, redis_client: Any
) -> None:
    """What takes free slots at once needs no place in the queue; the rest does, all of it."""
    async with member(url, run_dir, workers=(worker.address,), bounds=QueueBounds(max_requests=7)) as gateway:
        await gateway.ready()
        wants = QueueKeys.of("fake").wants
        await wait_until(lambda: redis_client.hlen(wants), "the driver has said what it wants")
        worker.gate.clear()
        accepted = await gateway.submit_all(*choices(7))
        assert (await gateway.assembly.queues.of("fake").stats()).requests == 3, "four took the slots"
        with pytest.raises(Refused) as refused:
            await gateway.submit_all(*choices(5))
        assert refused.value.reason is Reason.QUEUE_FULL
        assert len(gateway.assembly.streams) == 7
        accepted += await gateway.submit_all(*choices(4))
        assert (await gateway.assembly.queues.of("fake").stats()).requests == 7
        worker.gate.set()
        assert {answer.finish for answer in await read_each(accepted)} == {"length"}
        await wait_until(lambda: is_idle(gateway), "everything is free again")


@pytest.mark.parametrize(
    ("bound", "wanted", "param"),
    [(4, choices(5), "n"), (0, choices(2), "n"), (1000, choices(MAX_GROUP + 1), "n"), (4, [sequence()] * 5, "prompt")],
)
async def test_a_request_that_could_never_wait_is_not_valid(
    url: str, run_dir: Path, bound: int, wanted: Sequence[SequenceRequest], param: str
) -> None:
    """A 429 would have its client come back for ever. That it is valid must not depend on who runs just now."""
    worker = WorkerPeer()
    await worker.start(f"unix:{run_dir}/w0")
    async with member(url, run_dir, workers=(worker.address,), bounds=QueueBounds(max_requests=bound)) as gateway:
        await gateway.ready()
        with pytest.raises(Refused) as refused:
            await gateway.submit_all(*wanted)
        assert (refused.value.reason, refused.value.param) == (Reason.INVALID_VALUE, param)
        assert f"at most {max(1, min(bound, MAX_GROUP))}, as many as the queue may hold" in refused.value.message
        assert len(gateway.assembly.streams) == 0
    await worker.kill()


async def test_a_choice_that_is_complete_leaves_the_others_running(url: str, run_dir: Path, worker: WorkerPeer) -> None:
    """Its stop string was found: its slot is free, and their answers are whole."""
    async with member(url, run_dir, workers=(worker.address,)) as gateway:
        await gateway.ready()
        first, *others = await gateway.submit_all(*choices(3, max_tokens=400))
        await anext(first)
        first.complete()
        assert [len(answer.token_ids) for answer in await read_each(others)] == [400, 400]
        await wait_until(lambda: is_idle(gateway), "everything is free again")


@pytest.mark.parametrize("origin_name", ["driver", "origin"])
async def test_a_deadline_ends_all_sequences_of_a_request(
    url: str, run_dir: Path, worker: WorkerPeer, origin_name: str
) -> None:
    """Those that run and those that wait, on time, wherever their driver is."""
    async with driver_and_origin(url, run_dir, worker.address) as (driver, other):
        origin = {"driver": driver, "origin": other}[origin_name]
        streams = await origin.submit_all(*choices(6, max_tokens=1500), deadline_us=monotonic_us() + 100_000)
        answers = await read_each(streams)
        assert [answer.error for answer in answers] == [Reason.DEADLINE_EXCEEDED] * 6
        await wait_until(lambda: is_idle(driver), "slots, blocks and queue are free")


async def test_a_client_that_leaves_takes_all_sequences_with_it(url: str, run_dir: Path, worker: WorkerPeer) -> None:
    """Nothing is generated for nobody."""
    async with member(url, run_dir, workers=(worker.address,)) as gateway:
        await gateway.ready()
        streams = await gateway.submit_all(*choices(6, max_tokens=1500))
        await anext(streams[0])
        for stream in streams:
            stream.cancel("the client went away")
        await wait_until(lambda: is_idle(gateway), "slots, blocks and queue are free")
        assert len(gateway.assembly.streams) == 0


async def test_an_offer_that_is_interrupted_leaves_none_of_its_sequences(
    url: str, run_dir: Path, worker: WorkerPeer
) -> None:
    """Whether the store took them is not known: each is withdrawn."""
    async with member(url, run_dir, workers=(worker.address,)) as gateway:
        await gateway.ready()
        submitting = asyncio.create_task(gateway.submit_all(*choices(6, max_tokens=1500)))
        await asyncio.sleep(0)
        assert len(gateway.assembly.streams) == 6, "the offer is on its way"
        submitting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await submitting
        await wait_until(lambda: not gateway.assembly.acts.is_pending, "the store was told")
        await wait_until(lambda: is_idle(gateway), "slots, blocks and queue are free")


async def test_a_sequence_that_fails_leaves_the_others_to_the_caller(url: str, run_dir: Path) -> None:
    """An answer that lacks one is not whole; but that is for whoever answers to say."""
    broken = Rule(contains="k", output=Text(kind="text", text="It ra", then="fail"))
    peer = WorkerPeer(FakeScript(output=Words(), rules=(broken,), slots=2))
    await peer.start(f"unix:{run_dir}/w0")
    async with member(url, run_dir, workers=(peer.address,)) as gateway:
        await gateway.ready()
        k = next(token for token in range(300) if peer.executor._speaker._tokenizer.decode([token]) == "k")
        sound, failing = await gateway.submit_all(sequence(prompt_ids=(k + 1,) * 8), sequence(prompt_ids=(k,) * 8))
        assert (await read_all(failing)).error is Reason.INTERNAL_ERROR
        assert (await read_all(sound)).finish == "length"
    await peer.kill()


# --- log-probabilities and cached tokens ------------------------------------------------------------------------------


@pytest.mark.parametrize("origin_name", ["driver", "origin"])
async def test_log_probabilities_come_with_their_tokens(
    url: str, run_dir: Path, worker: WorkerPeer, origin_name: str
) -> None:
    """Those of a prompt that takes several iterations, whole before the first token; on either side of the relay."""
    prompt = tuple(number % 300 for number in range(600))
    async with driver_and_origin(url, run_dir, worker.address) as (driver, other):
        origin = {"driver": driver, "origin": other}[origin_name]
        asking = sequence(prompt_ids=prompt, max_tokens=30, sampling=SCORED)
        silent = sequence(prompt_ids=prompt, max_tokens=30)
        stream, other_stream = await origin.submit_all(asking, silent)
        first = await anext(stream)
        assert stream.prompt_logprobs == scored(prompt[1:], 1)
        assert first.logprobs == scored(first.token_ids, 2)
        rest, plain = await read_all(stream), await read_all(other_stream)
        assert rest.logprobs == scored(rest.token_ids, 2)
        assert (len(first.token_ids + rest.token_ids), rest.finish) == (30, "length")
        assert (plain.logprobs, other_stream.prompt_logprobs) == ((), ())


async def test_the_token_that_ends_an_output_takes_its_log_probability_with_it(url: str, run_dir: Path) -> None:
    """It is no part of the answer: there are as many log-probabilities as tokens."""
    peer = WorkerPeer(FakeScript(output=Text(kind="text", text="Hello there")))
    await peer.start(f"unix:{run_dir}/w0")
    async with member(url, run_dir, workers=(peer.address,)) as gateway:
        await gateway.ready()
        answer = await read_all(await gateway.submit(max_tokens=100, sampling=Sampling(top_logprobs=0)))
        assert answer.finish == "stop"
        assert answer.logprobs == scored(answer.token_ids, 0)
    await peer.kill()


async def test_a_broken_relay_link_loses_and_doubles_no_log_probability(
    url: str, run_dir: Path, worker: WorkerPeer
) -> None:
    """They are in the journal with their tokens, and those of the prompt before them."""
    prompt = tuple(number % 300 for number in range(700))
    async with driver_and_origin(url, run_dir, worker.address) as (_, origin):
        streams = await origin.submit_all(*choices(3, prompt_ids=prompt, max_tokens=200, sampling=SCORED))
        reading = asyncio.create_task(read_each(streams))
        for _ in range(3):
            await wait_until(lambda: bool(origin.assembly.relay._listener._open), "the link is up")
            for connection in list(origin.assembly.relay._listener._open.values()):
                connection.abort("the test breaks it")
        for stream, answer in zip(streams, await reading, strict=True):
            assert (len(answer.token_ids), answer.finish) == (200, "length")
            assert answer.logprobs == scored(answer.token_ids, 2)
            assert stream.prompt_logprobs == scored(prompt[1:], 1)


@pytest.mark.parametrize("host_blocks", [0, 64])
async def test_preemption_repeats_no_log_probability_and_changes_no_count(
    url: str, run_dir: Path, host_blocks: int
) -> None:
    """What is computed again was told before; and what was cached is what was cached at the first start."""
    script = FakeScript(output=Echo(kind="echo"), slots=4, blocks=16, block_size=4, host_blocks=host_blocks)
    peer = WorkerPeer(script)
    await peer.start(f"unix:{run_dir}/w0")
    async with member(url, run_dir, workers=(peer.address,), preset=TIGHT) as gateway:
        await gateway.ready()
        peer.gate.clear()
        asking = [sequence(prompt_ids=PROMPT[:9], max_tokens=24, sampling=SCORED)] * 2
        sharing = [sequence(prompt_ids=PROMPT[:9], max_tokens=24)] * 2
        streams = await gateway.submit_all(*asking, *sharing)
        await wait_until(lambda: nothing_waits(gateway), "all are claimed")
        peer.gate.set()
        answers = await read_each(streams)
        assert gateway.value("sluicegate_preemptions_total", reason="kv") > 0
        for answer in answers:
            assert (answer.token_ids, answer.finish) == ((PROMPT[:9] * 3)[:24], "length")
        for stream, answer in zip(streams[:2], answers[:2], strict=True):
            assert answer.logprobs == scored(answer.token_ids, 2)
            assert stream.prompt_logprobs == scored(PROMPT[1:9], 1)
            assert stream.cached_tokens == 0, "whose prompt is scored computes all of it"
        assert [stream.cached_tokens for stream in streams[2:]] == [0, 8]
    await peer.kill()


async def test_a_move_repeats_no_log_probability(url: str, run_dir: Path, worker: WorkerPeer) -> None:
    """Another driver goes on from the tokens so far; or computes the prompt again, where there are none."""
    prompt = tuple(number % 300 for number in range(700))
    async with member(url, run_dir, workers=(worker.address,)) as gateway:
        await gateway.ready()
        started, early = await gateway.submit_all(
            sequence(prompt_ids=PROMPT, max_tokens=300, sampling=SCORED),
            sequence(prompt_ids=prompt, max_tokens=300, sampling=SCORED),
        )
        first = await anext(started)
        await worker.kill()
        await worker.restart()
        rest, whole = await read_each([started, early])
        assert started.num_moves == 1
        assert first.logprobs + rest.logprobs == scored(first.token_ids + rest.token_ids, 2)
        assert len(first.token_ids + rest.token_ids) == 300
        assert whole.logprobs == scored(whole.token_ids, 2)
        assert (started.prompt_logprobs, early.prompt_logprobs) == (scored(PROMPT[1:], 1), scored(prompt[1:], 1))


async def test_more_log_probabilities_of_prompts_than_memory_bears_are_refused(
    url: str, run_dir: Path, worker: WorkerPeer
) -> None:
    """Prompt, likeliest tokens and choices multiply; each alone is within its bound."""
    async with member(url, run_dir, workers=(worker.address,)) as gateway:
        await gateway.ready()
        number = MOST_PROMPT_LOGPROBS // (1000 * 21) + 1
        sampling = Sampling(prompt_logprobs=20)
        with pytest.raises(Refused) as refused:
            await gateway.submit_all(*choices(number, prompt_ids=(7,) * 1000, sampling=sampling))
        assert (refused.value.reason, refused.value.param) == (Reason.INVALID_VALUE, "prompt_logprobs")


class ForgetfulWorker(WorkerPeer):
    """Spoils the log-probabilities of its first reports."""

    def __init__(self, spoil: str) -> None:
        super().__init__(FakeScript(output=Echo(kind="echo")))
        self._spoil = spoil

    def report(self, connection: FrameConnection, report: ReportMessage) -> None:
        if len(self.epochs) == 1:
            prompts, outputs = report.logprobs[:-1], report.logprobs[-1:]
            spoilt = {
                "none at all": (),
                "none of the prompt": outputs,
                "none of the output": prompts,
                "of another token": (*prompts, *[replace(found, start=found.start + 1) for found in outputs]),
                "of half a list": (*prompts, *[replace(found, top=found.top[:1]) for found in outputs]),
            }
            report = replace(report, logprobs=spoilt[self._spoil])
        connection.send(report)


@pytest.mark.parametrize(
    "spoil", ["none at all", "none of the prompt", "none of the output", "of another token", "of half a list"]
)
async def test_a_worker_whose_log_probabilities_are_wrong_is_driven_anew(url: str, run_dir: Path, spoil: str) -> None:
    """They would stand beside other tokens than theirs; its sequences go on where nothing is missing."""
    peer = ForgetfulWorker(spoil)
    await peer.start(f"unix:{run_dir}/w0")
    async with member(url, run_dir, workers=(peer.address,)) as gateway:
        await gateway.ready()
        stream = await gateway.submit(prompt_ids=PROMPT, max_tokens=8, sampling=SCORED)
        answer = await read_all(stream)
        assert answer.logprobs == scored(answer.token_ids, 2)
        assert stream.prompt_logprobs == scored(PROMPT[1:], 1)
        assert len(peer.epochs) == 2
    await peer.kill()
