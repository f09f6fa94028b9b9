"""The engine: plans in, tokens out.

A step is five verbs: apply the plan to the slots, lay its work out as one batch, run the model once, sample, report.
The engine keeps no policy: which sequences run, and in which blocks, is the scheduler's, and what a slot may be told is
``slots.py``'s. Sampled tokens are fed forward here, so that a plan need not wait for the last one's report to be read.

A sequence that cannot go on (an id that is no token, a parameter that is no number, logits that are not finite) is
reported ``failed`` alone. What it left in its blocks is cleaned when they get a new owner (see ``slots.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from workers.batch import Batch, BlockTables, Target, build_batch, lay_out
from workers.engine_settings import DEFAULT_MODEL, EngineSettings
from workers.errors import LoadError
from workers.host import usable_cores
from workers.kv_cache import KVPool, available_memory, block_bytes, pool_share, size_pool
from workers.model import CausalModel, choose_device, choose_dtype, load_model
from workers.sampler import TopLogprobs, log_probabilities, sample
from workers.slot_sampling import SlotSampling
from workers.slots import SlotTable, Work
from workers.tokenizer_files import eos_ids, read_tokenizer_files
from workers.weights import default_cache, find_model
from workers.wire import (
    Logprobs,
    ModelCard,
    NewSequence,
    PlanMessage,
    PrefillSpan,
    ReportMessage,
    Sampling,
    TokenizerFiles,
)

GROUP_TOKENS = {"cpu": 2048, "cuda": 1 << 20}
"""Tokens gathered at once for sequences that decode: on a CPU about what its caches hold, on CUDA what memory bears."""

WARM_UP_TOKENS = 64

ROWS_SCORED_AT_ONCE = 256
"""Prompt tokens whose log-probabilities are computed together: with a vocabulary of 256,000 their logits take 256
MiB."""


@dataclass(slots=True, kw_only=True)
class Outcome:
    """What came of a step, by slot. ``logprobs`` holds what was asked for."""

    tokens: dict[int, int] = field(default_factory=dict)
    failed: set[int] = field(default_factory=set)
    logprobs: list[Logprobs] = field(default_factory=list)


class Engine:
    """One model, its KV pool and its slots. An ``Executor``; used from one thread."""

    def __init__(
        self, *, model: CausalModel, pool: KVPool, card: ModelCard, files: TokenizerFiles, max_slots: int
    ) -> None:
        self.card = card
        self.max_slots = max_slots
        self.kv_blocks = pool.num_blocks
        self.block_size = pool.block_size
        self._model = model
        self._pool = pool
        self._files = files
        self._slots = SlotTable(
            max_slots=max_slots,
            kv_blocks=pool.num_blocks,
            block_size=pool.block_size,
            context_length=card.context_length,
            eos_ids=card.eos_ids,
        )
        self._sampling = SlotSampling(model.vocab_size)
        self._tables = BlockTables(
            max_slots=max_slots,
            max_blocks=-(-card.context_length // pool.block_size),
            null_block=pool.null_block,
        )
        self._target = Target(
            block_size=pool.block_size,
            kinds=tuple(dict.fromkeys(layer.kind for layer in model.layers)),
            dtype=model.dtype,
            device=model.device,
        )

    def tokenizer_files(self) -> TokenizerFiles:
        return self._files

    def reset(self) -> None:
        self._slots.reset()
        self._sampling.reset()

    @torch.inference_mode()
    def execute(self, plan: PlanMessage) -> ReportMessage:
        """Run one iteration. Raises PlanError for a plan that breaks the rules."""
        works = self._take_in(plan)
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
        )

    def _take_in(self, plan: PlanMessage) -> tuple[Work, ...]:
        works = self._slots.apply(plan)
        for new in plan.starts:
            self._tables.start(new.slot, new.blocks)
            self._sampling.start(self._slots.state(new.slot))
        for growth in plan.grows:
            self._tables.grow(growth.slot, growth.blocks)
        self._pool.scrub(self._slots.take_to_scrub())
        self._pool.copy(plan.copies)
        return works

    def _is_sound(self, work: Work) -> bool:
        ids = work.state.tokens[work.start : work.start + work.length]
        return min(ids) >= 0 and max(ids) < self._model.vocab_size and self._sampling.is_usable(work.state.slot)

    def _run(self, works: Sequence[Work]) -> Outcome:
        """One forward pass over everything, and before it some for the prompts whose tokens are to be scored."""
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
        if plain:
            batch = self._batch(plain)
            emitting += batch.emitting
            logits.append(self._model.logits(batch, self._pool, batch.emit_rows))
        if emitting:
            self._sample(emitting, logits[0] if len(logits) == 1 else torch.cat(logits), outcome)
        return outcome

    def _batch(self, works: Sequence[Work]) -> Batch:
        return build_batch(lay_out(works, GROUP_TOKENS[self._model.device.type]), self._tables.tensor, self._target)

    def _score(self, work: Work, outcome: Outcome) -> Tensor:
        """Compute a chunk of a prompt with the log-probabilities of what follows each token; its last row of logits."""
        state, end = work.state, work.start + work.length
        for start in range(work.start, end, ROWS_SCORED_AT_ONCE):
            piece = replace(work, start=start, length=min(ROWS_SCORED_AT_ONCE, end - start))
            batch = self._batch([piece])
            logits = self._model.logits(batch, self._pool, torch.arange(piece.length, device=self._model.device))
            followers = state.prompt[start + 1 : start + 1 + piece.length]
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
        scored: dict[int, tuple[int, int]] = {}
        for row, (work, token) in enumerate(zip(emitting, chosen, strict=True)):
            if token is None:
                outcome.failed.add(work.state.slot)
                continue
            outcome.tokens[work.state.slot] = token
            if work.state.sampling.top_logprobs is not None:
                scored[row] = token, work.state.sampling.top_logprobs
        if scored:
            tokens, widths = zip(*scored.values(), strict=True)
            for row, score in zip(scored, log_probabilities(logits[list(scored)], tokens, widths), strict=True):
                state = emitting[row].state
                outcome.logprobs.append(_logprobs(state.slot, len(state.tokens), [score]))


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


# --- loading ----------------------------------------------------------------------------------------------------------


def load_engine(settings: EngineSettings, progress: Callable[[str], None]) -> Engine:
    """Find and load the model, build its pool and run once, so that the first request is as fast as the second.

    Raises LoadError, in one sentence, when these settings cannot be served.
    """
    torch.set_num_threads(settings.threads or usable_cores())
    device = choose_device(settings.device)
    dtype = choose_dtype(settings.dtype, device)
    found = find_model(settings.model or DEFAULT_MODEL, settings.model_cache or default_cache(), progress)
    progress(f"Loading {found.name} in {_name(dtype)} on {device.type}")
    model = load_model(found.path, device, dtype)
    size = size_pool(
        kv_blocks=settings.kv_blocks,
        available_bytes=available_memory(device),
        share=pool_share(device),
        bytes_per_block=block_bytes(model.layers, settings.block_size, dtype),
        max_slots=settings.max_slots,
        context_length=_allowed_context(model, settings.max_model_len),
        block_size=settings.block_size,
    )
    files = read_tokenizer_files(found.path)
    card = ModelCard(
        name=settings.served_model_name or found.name,
        context_length=size.context_length,
        vocab_size=model.vocab_size,
        eos_ids=eos_ids(found.path, files),
        tokenizer_digest=files.digest,
        dtype=_name(dtype),
        device=device.type,
    )
    pool = KVPool(
        layers=model.layers, num_blocks=size.num_blocks, block_size=settings.block_size, dtype=dtype, device=device
    )
    engine = Engine(model=model, pool=pool, card=card, files=files, max_slots=settings.max_slots)
    warm_up(engine)
    progress(
        f"{card.name} is ready: {settings.max_slots} slots, {size.num_blocks} KV blocks of {settings.block_size}"
        f" tokens, a context of {size.context_length}"
    )
    return engine


def warm_up(engine: Engine) -> None:
    """Prefill a little and decode once: the first pass of each kind pays for memory and kernels to be set up."""
    length = min(WARM_UP_TOKENS, engine.card.context_length - 2)
    if length < 1:
        return
    num_blocks = -(-(length + 2) // engine.block_size)
    sequence = NewSequence(
        slot=0,
        sequence_id="warm-up",
        tokens=(0,) * length,
        emitted=0,
        computed=0,
        max_tokens=2,
        sampling=Sampling(temperature=1.0, top_p=0.9, ignore_eos=True, top_logprobs=1),
        blocks=tuple(range(num_blocks)),
    )
    nothing = PlanMessage(step=0, epoch=0, frees=(), starts=(), grows=(), copies=(), prefill=(), decode=())
    prefill = PrefillSpan(slot=0, start=0, length=length, emits=True)
    engine.execute(replace(nothing, starts=(sequence,), prefill=(prefill,)))
    engine.execute(replace(nothing, decode=(0,)))
    engine.reset()


def _allowed_context(model: CausalModel, asked: int | None) -> int:
    if asked is not None and asked > model.context_length:
        raise LoadError(f"The model's context holds {model.context_length} tokens, fewer than the {asked} asked for.")
    return asked or model.context_length


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
