"""The engine: plans in, tokens out.

A step is five verbs: apply the plan to the slots, lay its work out as one batch, run the model once, sample, report.
The engine keeps no policy: which sequences run, and in which blocks, is the scheduler's, and what a slot may be told is
``slots.py``'s. Sampled tokens are fed forward here, so that a plan need not wait for the last one's report to be read.

A sequence that cannot go on (an id that is no token, a parameter that is no number, logits that are not finite) is
reported ``failed`` alone. What it left in its blocks is cleaned when they get a new owner (see ``slots.py``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, auto

import torch
from torch import Tensor

from workers.attention import Backend, GatherBackend, Step
from workers.batch import BlockTables, Target
from workers.fast.choose import ServedModel
from workers.fast.forward import FastModel, FastPasses
from workers.fixed_shapes import FixedShapes
from workers.kv_cache import KVPool
from workers.model import CausalModel
from workers.sampler import TopLogprobs, log_probabilities, sample
from workers.slot_sampling import SlotSampling
from workers.slots import SlotTable, Work
from workers.swapped import Moves
from workers.wire import Logprobs, ModelCard, PlanMessage, ReportMessage, TokenizerFiles

GROUP_TOKENS = {"cpu": 2048, "cuda": 1 << 20}
"""Tokens gathered at once for sequences that decode: on a CPU about what its caches hold, on CUDA what memory bears."""

ROWS_SCORED_AT_ONCE = 256
"""Prompt tokens whose log-probabilities are computed together: of a vocabulary of 256,000 their logits take 256 MiB."""


@dataclass(slots=True, kw_only=True)
class Outcome:
    """What came of a step, by slot. ``logprobs`` holds what was asked for."""

    tokens: dict[int, int] = field(default_factory=dict)
    failed: set[int] = field(default_factory=set)
    logprobs: list[Logprobs] = field(default_factory=list)


class Shapes(Enum):
    """Of a step's forward passes: MIXED, one pass as large as the step; FIXED, passes of one shape, at a cost."""

    MIXED = auto()
    FIXED = auto()


class Engine:
    """One model, its KV pool and its slots. An ``Executor``; used from one thread."""

    def __init__(
        self,
        *,
        model: ServedModel,
        pool: KVPool,
        card: ModelCard,
        files: TokenizerFiles,
        max_slots: int,
        host_blocks: int = 0,
        backend: Backend | None = None,
        shapes: Shapes = Shapes.MIXED,
    ) -> None:
        self.card = card
        self.max_slots = max_slots
        self.kv_blocks = pool.num_blocks
        self.block_size = pool.block_size
        self.host_blocks = host_blocks
        self._swapped: dict[str, list[Tensor]] = {}
        self._model = model
        self._pool = pool
        self._files = files
        self._slots = SlotTable(
            max_slots=max_slots,
            kv_blocks=pool.num_blocks,
            block_size=pool.block_size,
            context_length=card.context_length,
            eos_ids=card.eos_ids,
            host_blocks=host_blocks,
        )
        self._sampling = SlotSampling(model.vocab_size)
        self._tables = BlockTables(
            max_slots=max_slots,
            max_blocks=-(-card.context_length // pool.block_size),
            null_block=pool.null_block,
        )
        self._passes = _passes(model, pool, self._tables.tensor, shapes)
        self._backend = gather_backend(model, pool) if backend is None else backend

    def tokenizer_files(self) -> TokenizerFiles:
        return self._files

    def reset(self) -> None:
        self._slots.reset()
        self._sampling.reset()
        self._swapped.clear()

    @torch.inference_mode()
    def execute(self, plan: PlanMessage) -> ReportMessage:
        """Run one iteration. Raises PlanError for a plan that breaks the rules."""
        return self._carry_out(plan, self._take_in(plan))

    def _carry_out(self, plan: PlanMessage, works: Sequence[Work]) -> ReportMessage:
        sound = [work for work in works if self._is_sound(work)]
        outcome = self._run(sound) if sound else Outcome()
        outcome.failed |= {work.state.slot for work in works} - {work.state.slot for work in sound}
        tokens, finished = [], []
        for work in works:
            state = work.state
            if state.slot in outcome.failed:
                finished.append((state.slot, str(self._slots.fail(state))))
            elif work.emits:
                token = outcome.tokens[state.slot]
                tokens.append((state.slot, token))
                self._sampling.note(state.slot, token)
                if reason := self._slots.emit(state, token):
                    finished.append((state.slot, str(reason)))
        return ReportMessage(
            step=plan.step,
            epoch=plan.epoch,
            tokens=tuple(tokens),
            finished=tuple(finished),
            live_blocks=self._slots.live_blocks,
            busy_us=0,
            idle_us=0,
            logprobs=tuple(outcome.logprobs),
            host_blocks=self._slots.host_blocks,
        )

    def _take_in(self, plan: PlanMessage) -> tuple[Work, ...]:
        works = self._slots.apply(plan)
        for new in plan.starts:
            self._tables.start(new.slot, new.blocks)
            self._sampling.start(self._slots.state(new.slot))
        for growth in plan.grows:
            self._tables.grow(growth.slot, growth.blocks)
        self._move(self._slots.take_moves())
        self._pool.copy(plan.copies)
        return works

    def _move(self, moves: Moves) -> None:
        for sequence_id in moves.drops:
            del self._swapped[sequence_id]
        for out in moves.outs:
            self._swapped[out.sequence_id] = self._pool.take_out(out.blocks)
        self._pool.scrub(moves.scrub)
        for back in moves.ins:
            self._pool.put_back(back.blocks, self._swapped.pop(back.sequence_id), first=back.first)

    def _is_sound(self, work: Work) -> bool:
        ids = work.ids
        return min(ids) >= 0 and max(ids) < self._model.vocab_size and self._sampling.is_usable(work.state.slot)

    def _run(self, works: Sequence[Work]) -> Outcome:
        """A forward pass over everything, and before it some for the prompts whose tokens are to be scored."""
        outcome = Outcome()
        emitting: list[Work] = []
        logits: list[Tensor] = []
        for work in works:
            if wants_prompt_logprobs(work):
                last = self._score(work, outcome)
                if work.emits and work.state.slot not in outcome.failed:
                    emitting.append(work)
                    logits.append(last)
        plain = [work for work in works if not wants_prompt_logprobs(work)]
        if plain and isinstance(self._passes, FastPasses) and not emitting and self._wants_best_alone(plain):
            _take(*self._passes.best(plain), outcome)
            return outcome
        if plain:
            others, of_others = self._emitted(plain)
            emitting += others
            logits.append(of_others)
        if emitting:
            self._sample(emitting, logits[0] if len(logits) == 1 else torch.cat(logits), outcome)
        return outcome

    def _wants_best_alone(self, works: Sequence[Work]) -> bool:
        """Whether all that is asked for is the best token of each that emits: no draw, and no log-probability."""
        emitting = [work for work in works if work.emits]
        return not self._sampling.any_draws(emitting) and all(
            work.state.sampling.top_logprobs is None for work in emitting
        )

    def _emitted(self, works: Sequence[Work]) -> tuple[Sequence[Work], Tensor]:
        """Run everything; those that emit, and logits for each."""
        if self._passes is not None:
            return self._passes.emitted(works)
        assert not isinstance(self._model, FastModel)  # noqa: S101 -- it has passes of its own
        step = self._prepare(works)
        return step.emitting, self._model.logits(step, step.emit_rows)

    def _all_logits(self, work: Work) -> Tensor:
        if self._passes is not None:
            return self._passes.all_logits(work)
        assert not isinstance(self._model, FastModel)  # noqa: S101 -- see above
        return self._model.logits(self._prepare([work]), torch.arange(work.length, device=self._model.device))

    def _prepare(self, works: Sequence[Work]) -> Step:
        return self._backend.prepare(works, self._tables.tensor)

    def _score(self, work: Work, outcome: Outcome) -> Tensor:
        """Compute a chunk of a prompt with the log-probabilities of what follows each token; its last row of logits."""
        state, end = work.state, work.start + work.length
        for start in range(work.start, end, ROWS_SCORED_AT_ONCE):
            piece = replace(work, start=start, length=min(ROWS_SCORED_AT_ONCE, end - start))
            logits = self._all_logits(piece)
            followers = state.prompt_from(start + 1, piece.length)
            if (
                not bool(torch.isfinite(logits.max(dim=-1).values).all())
                or max(followers, default=0) >= self._model.vocab_size
            ):
                outcome.failed.add(state.slot)
            elif followers:
                widths = [state.sampling.prompt_logprobs or 0] * len(followers)
                scores = log_probabilities(logits[: len(followers)], followers, widths)
                outcome.logprobs.append(_logprobs(state.slot, start + 1, scores))
        return logits[-1:]

    def _sample(self, emitting: Sequence[Work], logits: Tensor, outcome: Outcome) -> None:
        chosen = sample(logits, self._sampling.draws(emitting))
        _take(emitting, chosen, outcome)
        scored = {
            row: (token, work.state.sampling.top_logprobs)
            for row, (work, token) in enumerate(zip(emitting, chosen, strict=True))
            if token is not None and work.state.sampling.top_logprobs is not None
        }
        if scored:
            tokens, widths = zip(*scored.values(), strict=True)
            for row, score in zip(scored, log_probabilities(logits[list(scored)], tokens, widths), strict=True):
                state = emitting[row].state
                outcome.logprobs.append(_logprobs(state.slot, len(state.tokens), [score]))


def _passes(model: ServedModel, pool: KVPool, tables: Tensor, shapes: Shapes) -> FastPasses | FixedShapes | None:
    """Another way to run a step than one mixed pass of transformers' own model, if there is one."""
    if isinstance(model, FastModel):
        return FastPasses(model, pool, tables)
    if shapes is Shapes.FIXED:
        assert isinstance(model, CausalModel)  # noqa: S101 -- the others are not chosen then
        return FixedShapes(model, pool, tables)
    return None


def _take(emitting: Sequence[Work], chosen: Sequence[int | None], outcome: Outcome) -> None:
    for work, token in zip(emitting, chosen, strict=True):
        if token is None:
            outcome.failed.add(work.state.slot)
        else:
            outcome.tokens[work.state.slot] = token


def gather_backend(model: ServedModel, pool: KVPool) -> GatherBackend:
    """The way to attend that serves every model."""
    target = Target(
        block_size=pool.block_size,
        kinds=tuple(dict.fromkeys(layer.kind for layer in model.layers)),
        dtype=model.dtype,
        device=model.device,
    )
    return GatherBackend(pool, target, group_tokens=GROUP_TOKENS[model.device.type])


def wants_prompt_logprobs(work: Work) -> bool:
    """Whether its tokens are to be scored. One that has output was reported on before that."""
    return work.state.sampling.prompt_logprobs is not None and work.state.emitted == 0


def _logprobs(slot: int, start: int, scores: Sequence[TopLogprobs]) -> Logprobs:
    return Logprobs(
        slot=slot,
        start=start,
        own=tuple(score.own for score in scores),
        top_ids=tuple(token for score in scores for token in score.top_ids),
        top=tuple(value for score in scores for value in score.top),
    )
