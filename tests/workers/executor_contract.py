"""What every executor promises, whatever computes its tokens.

A test class that inherits ``ExecutorContract`` and gives it an ``executor`` fixture runs the whole suite. The executor
needs 4 slots, 32 blocks, 4 host blocks, a context of 64 tokens and a vocabulary of 90; it has to be empty.
"""

from __future__ import annotations

import dataclasses

import pytest

from tests.workers.planner import GREEDY, Planner, Request, generate
from workers.executor import Executor, PlanError
from workers.wire import BlockGrowth, NewSequence, PlanMessage, PrefillSpan, Sampling, encode

NOTHING = PlanMessage(step=1, epoch=1, frees=(), starts=(), grows=(), copies=(), prefill=(), decode=())
SEQUENCE = NewSequence(
    slot=0, sequence_id="a", tokens=(10, 11, 12), emitted=0, computed=0, max_tokens=8, sampling=GREEDY, blocks=(0, 1)
)
WHOLE = PrefillSpan(slot=0, start=0, length=3, emits=True)


def prompt(length: int, salt: int = 0) -> tuple[int, ...]:
    """Tokens that are in every vocabulary, and special in none that matters here."""
    return tuple(10 + (7 * at + 13 * salt) % 80 for at in range(length))


def change(plan: PlanMessage = NOTHING, **fields: object) -> PlanMessage:
    return dataclasses.replace(plan, **fields)  # type: ignore[arg-type]  # the callers name fields of a plan


class ExecutorContract:
    @pytest.fixture
    def executor(self) -> Executor:
        raise NotImplementedError

    # --- what comes out does not depend on how it was run -----------------------------------------------------------

    def test_a_request_gives_all_its_tokens_and_says_that_it_ended(self, executor: Executor) -> None:
        """``max_tokens`` bounds the output exactly; the last token and the finish come together."""
        planner = Planner(executor)
        reports = [planner.iterate(starts=[Request(prompt=prompt(5), max_tokens=3)])]
        reports += [planner.iterate(), planner.iterate()]
        assert [len(report.tokens) for report in reports] == [1, 1, 1]
        assert [report.finished for report in reports] == [(), (), ((0, "length"),)]

    @pytest.mark.parametrize("chunk", [1, 2, 3, 5, 16])
    def test_any_split_of_the_prefill_gives_the_same_tokens(self, executor: Executor, chunk: int) -> None:
        """The scheduler may cut a prompt wherever its budget ends."""
        request = Request(prompt=prompt(23))
        assert generate(executor, request, chunk=chunk) == generate(executor, request)

    def test_neighbours_that_come_and_go_change_nothing(self, executor: Executor) -> None:
        """Continuous batching is invisible to each request."""
        requests = [Request(prompt=prompt(5 + 3 * index, index), max_tokens=4 + index) for index in range(4)]
        alone = [generate(executor, request)[0] for request in requests]
        planner = Planner(executor, chunk=4)
        joined = []
        for request in requests:
            planner.iterate(starts=[request])
            joined.append(planner.running()[-1])
        planner.finish()
        assert [running.output for running in joined] == alone

    def test_seeded_sampling_does_not_depend_on_neighbours(self, executor: Executor) -> None:
        """The random number of a token is a function of seed, choice and position alone."""
        seeded = Request(prompt=prompt(6), sampling=Sampling(temperature=1.0, seed=-7, ignore_eos=True))
        alone = generate(executor, seeded)[0]
        assert generate(executor, Request(prompt=prompt(9, 1)), seeded, chunk=2)[1] == alone

    def test_a_sequence_that_moved_continues_as_it_would_have(self, executor: Executor) -> None:
        """Prompt and output so far are prefilled anew: no token is lost, none comes twice."""
        request = Request(prompt=prompt(6), max_tokens=8)
        whole = generate(executor, request)[0]
        moved = dataclasses.replace(request, emitted=tuple(whole[:3]))
        assert generate(executor, moved, chunk=4)[0] == whole[3:]

    def test_a_shared_prefix_gives_the_same_tokens(self, executor: Executor) -> None:
        """Blocks that are computed already need no second prefill, and count once."""
        request = Request(prompt=prompt(2 * executor.block_size + 1), max_tokens=4)
        planner = Planner(executor)
        planner.iterate(starts=[request])
        first = planner.running()[0]
        planner.iterate(starts=[request], share=first)
        second = planner.running()[1]
        assert second.blocks[:2] == first.blocks[:2]
        planner.finish()
        assert second.output == first.output

    # --- slots and blocks -------------------------------------------------------------------------------------------

    def test_freed_blocks_and_slots_serve_others_at_once(self, executor: Executor) -> None:
        """A plan may give away what it frees."""
        planner = Planner(executor)
        planner.iterate(starts=[Request(prompt=prompt(5, salt)) for salt in range(executor.max_slots)])
        report = planner.iterate(
            frees=planner.running(), starts=[Request(prompt=prompt(5, salt)) for salt in range(executor.max_slots)]
        )
        assert len(report.tokens) == executor.max_slots
        planner.finish()

    def test_a_plan_of_frees_alone_is_reported(self, executor: Executor) -> None:
        """Slots return when their sequences were cancelled, with nothing left to run."""
        planner = Planner(executor)
        planner.iterate(starts=[Request(prompt=prompt(5))])
        report = planner.iterate(frees=planner.running())
        assert report.tokens == ()
        assert report.live_blocks == 0

    def test_decodes_are_reported_before_prefills(self, executor: Executor) -> None:
        """The driver reads tokens in plan order."""
        planner = Planner(executor)
        planner.iterate(starts=[Request(prompt=prompt(5))])
        report = planner.iterate(starts=[Request(prompt=prompt(5, 1))])
        assert [slot for slot, _ in report.tokens] == [0, 1]

    def test_a_finished_sequence_is_left_out_of_plans_made_before_that_was_known(self, executor: Executor) -> None:
        """With two plans in flight the second one still names it; its neighbour goes on."""
        planner = Planner(executor)
        planner.iterate(starts=[Request(prompt=prompt(4), max_tokens=2), Request(prompt=prompt(4, 1))])
        ending = planner.plan()
        ahead = change(planner.plan(), decode=(0, 1))
        assert executor.execute(ending).finished == ((0, "length"),)
        report = executor.execute(ahead)
        assert [slot for slot, _ in report.tokens] == [1]
        assert report.finished == ()

    def test_reset_forgets_every_sequence(self, executor: Executor) -> None:
        """The next driver finds an empty worker, and the same answers."""
        request = Request(prompt=prompt(5))
        Planner(executor).iterate(starts=[request] * executor.max_slots)
        executor.reset()
        assert executor.execute(NOTHING).live_blocks == 0
        first, second = generate(executor, request), generate(executor, request)
        assert first == second

    def test_reports_can_be_encoded(self, executor: Executor) -> None:
        """Plain numbers, not those of an array library."""
        encode(Planner(executor).iterate(starts=[Request(prompt=prompt(5), max_tokens=1)]))

    def test_the_card_names_the_tokenizer(self, executor: Executor) -> None:
        """Gateways fetch it by that digest."""
        files = executor.tokenizer_files()
        assert files.digest == executor.card.tokenizer_digest
        assert "tokenizer.json" in dict(files.files)

    # --- plans that no correct driver sends -------------------------------------------------------------------------

    @pytest.mark.parametrize(
        ("plan", "problem"),
        [
            (change(frees=(1,)), "slot 1 is freed, but is empty"),
            (change(decode=(1,)), "slot 1 is decoded, but is empty"),
            (
                change(prefill=(PrefillSpan(slot=1, start=0, length=1, emits=True),)),
                "slot 1 is prefilled, but is empty",
            ),
            (change(grows=(BlockGrowth(slot=1, blocks=(9,)),)), "slot 1 is grown, but is empty"),
            (change(starts=(SEQUENCE,)), "slot 0 is started, but holds"),
            (change(starts=(dataclasses.replace(SEQUENCE, slot=1_000),)), "slot 1000 is started; there are"),
            (change(starts=(dataclasses.replace(SEQUENCE, slot=1),)), "block 0 is given to slot 1, but has an owner"),
            (change(grows=(BlockGrowth(slot=0, blocks=(0,)),)), "block 0 is given to slot 0, but has an owner"),
            (change(grows=(BlockGrowth(slot=0, blocks=(99_999,)),)), "block 99999 is given to slot 0; the pool has"),
            (change(copies=((0, 9),)), "block 0 is copied to block 9, which no sequence owns alone"),
            (change(decode=(0,)), "slot 0 is decoded before its prefill is done"),
            (change(prefill=(dataclasses.replace(WHOLE, start=1, length=2),)), "slot 0 is prefilled from 1 to 3; 0 of"),
            (change(prefill=(dataclasses.replace(WHOLE, length=4),)), "slot 0 is prefilled from 0 to 4"),
            (change(prefill=(dataclasses.replace(WHOLE, length=0),)), "slot 0 is prefilled from 0 to 0"),
            (change(prefill=(dataclasses.replace(WHOLE, emits=False),)), "slot 0 is to emit at 3 of 3"),
            (change(prefill=(dataclasses.replace(WHOLE, length=2),)), "slot 0 is to emit at 2 of 3"),
            (change(prefill=(WHOLE, WHOLE)), "a slot is to run twice"),
            (change(prefill=(WHOLE,), decode=(0,)), "a slot is to run twice"),
        ],
    )
    def test_a_plan_that_breaks_the_rules_is_refused(self, executor: Executor, plan: PlanMessage, problem: str) -> None:
        """Obeying it would give wrong text to somebody; after a reset the worker serves on."""
        executor.execute(change(starts=(SEQUENCE,)))
        with pytest.raises(PlanError, match=problem):
            executor.execute(plan)
        executor.reset()
        assert len(generate(executor, Request(prompt=prompt(5)))[0]) == 6

    # --- host memory -------------------------------------------------------------------------------------------------

    def test_a_sequence_that_was_swapped_out_continues_exactly(self, executor: Executor) -> None:
        """In another slot and other blocks, beside others that came meanwhile."""
        request = Request(prompt=prompt(5), max_tokens=6)
        (alone,) = generate(executor, request)
        planner = Planner(executor)
        planner.iterate(starts=[request])
        planner.iterate()
        (victim,) = planner.running()
        leaving = change(planner.plan(frees=[victim]), swap_outs=(victim.slot,))
        report = executor.execute(leaving)
        assert (report.live_blocks, report.host_blocks) == (0, -(-6 // executor.block_size))
        others = [Request(prompt=prompt(9, salt), max_tokens=2) for salt in range(2)]
        planner.iterate(starts=others)
        back = NewSequence(
            slot=3,
            sequence_id=victim.sequence_id,
            tokens=(*request.prompt, *alone[:2]),
            emitted=2,
            computed=6,
            max_tokens=6,
            sampling=GREEDY,
            blocks=(29, 30, 31),
            swapped=6,
        )
        report = executor.execute(change(starts=(back,), decode=(3,)))
        assert report.host_blocks == 0
        output = [*alone[:2], *(token for _, token in report.tokens)]
        while len(output) < 6:
            output += [token for _, token in executor.execute(change(decode=(3,))).tokens]
        assert output == alone

    def test_reset_empties_host_memory(self, executor: Executor) -> None:
        """A lost link leaves nothing behind."""
        planner = Planner(executor)
        planner.iterate(starts=[Request(prompt=prompt(5))])
        (victim,) = planner.running()
        assert executor.execute(change(planner.plan(frees=[victim]), swap_outs=(0,))).host_blocks > 0
        executor.reset()
        assert executor.execute(NOTHING).host_blocks == 0

    # --- what sampling asks of every executor -----------------------------------------------------------------------

    def test_a_stop_id_ends_a_sequence_as_an_eos_does(self, executor: Executor) -> None:
        """Even when an eos is ignored: the client asked for it."""
        request = Request(prompt=prompt(5), max_tokens=6)
        (output,) = generate(executor, request)
        stop = output[2]
        stopping = dataclasses.replace(GREEDY, stop_token_ids=(stop, 2**32 - 1))
        planner = Planner(executor)
        planner.iterate(starts=[dataclasses.replace(request, sampling=stopping)])
        (running,) = planner.running()
        planner.finish()
        assert running.output == output[: output.index(stop) + 1]
        assert running.finish == "stop"

    @pytest.mark.parametrize("chunk", [2, 5, 1_000])
    def test_log_probabilities_come_when_asked_for_and_say_of_what(self, executor: Executor, chunk: int) -> None:
        """Of every prompt token but the first, once, and of every output token, each by its position."""
        asking = dataclasses.replace(GREEDY, top_logprobs=3, prompt_logprobs=2)
        planner = Planner(executor, chunk=chunk)
        reports = [
            planner.iterate(
                starts=[Request(prompt=prompt(12), sampling=asking, max_tokens=3), Request(prompt=prompt(4, 1))]
            )
        ]
        while planner.running()[0].finish is None:
            reports.append(planner.iterate())
        planner.finish()
        widths: dict[int, int] = {}
        for scores in (scores for report in reports for scores in report.logprobs):
            assert scores.slot == 0
            assert len(scores.top) == len(scores.top_ids)
            for place in range(len(scores.own)):
                assert scores.start + place not in widths
                widths[scores.start + place] = len(scores.top) // len(scores.own)
        assert widths == {**dict.fromkeys(range(1, 12), 2), **dict.fromkeys(range(12, 15), 3)}

    def test_a_sequence_with_output_is_told_nothing_of_its_prompt_again(self, executor: Executor) -> None:
        """Its origin has all of that since its first token, and what computes it again may be shared by then."""
        asking = dataclasses.replace(GREEDY, top_logprobs=1, prompt_logprobs=1)
        planner = Planner(executor, chunk=3)
        reports = [planner.iterate(starts=[Request(prompt=prompt(7), sampling=asking, emitted=(11, 12), max_tokens=4)])]
        while planner.running()[0].finish is None:
            reports.append(planner.iterate())
        places = [scores.start for report in reports for scores in report.logprobs]
        assert places == [9, 10]
