"""The engine: plans in, tokens out.

A step is five verbs: apply the plan to the slots, lay its work out as one batch, run the model once, sample, report.
The engine keeps no policy: which sequences run, and in which blocks, is the scheduler's, and what a slot may be told is
``slots.py``'s. Sampled tokens are fed forward here, so that a plan need not wait for the last one's report to be read.

A sequence that cannot go on (an id that is no token, a parameter that is no number, logits that are not finite) is
reported ``failed`` alone. Its blocks are scrubbed, since later owners could stumble over what it left there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from workers.batch import BlockTables, Target, build_batch, lay_out
from workers.engine_settings import DEFAULT_MODEL, EngineSettings
from workers.errors import LoadError
from workers.host import usable_cores
from workers.kv_cache import KVPool, available_memory, block_bytes, pool_share, size_pool
from workers.model import CausalModel, choose_device, choose_dtype, load_model
from workers.randomness import uniform
from workers.sampler import Draw, sample
from workers.slots import SlotState, SlotTable, Work
from workers.tokenizer_files import eos_ids, read_tokenizer_files
from workers.weights import default_cache, find_model
from workers.wire import ModelCard, NewSequence, PlanMessage, PrefillSpan, ReportMessage, Sampling, TokenizerFiles

GROUP_TOKENS = {"cpu": 2048, "cuda": 1 << 20}
"""Tokens gathered at once for sequences that decode: on a CPU about what its caches hold, on CUDA what memory bears."""

WARM_UP_TOKENS = 64


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

    @torch.inference_mode()
    def execute(self, plan: PlanMessage) -> ReportMessage:
        """Run one iteration. Raises PlanError for a plan that breaks the rules."""
        works = self._take_in(plan)
        sound = [work for work in works if self._has_only_tokens(work)]
        broken = {work.state.slot for work in works} - {work.state.slot for work in sound}
        sampled = self._run(sound) if sound else {}
        tokens, finished = [], []
        for work in works:
            state = work.state
            token = sampled.get(state.slot)
            if state.slot in broken or (work.emits and token is None):
                self._pool.scrub(state.blocks)
                finished.append((state.slot, str(self._slots.fail(state))))
            elif token is not None:
                tokens.append((state.slot, token))
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
        )

    def _take_in(self, plan: PlanMessage) -> tuple[Work, ...]:
        works = self._slots.apply(plan)
        for new in plan.starts:
            self._tables.start(new.slot, new.blocks)
        for growth in plan.grows:
            self._tables.grow(growth.slot, growth.blocks)
        self._pool.copy(plan.copies)
        return works

    def _has_only_tokens(self, work: Work) -> bool:
        ids = work.state.tokens[work.start : work.start + work.length]
        return min(ids) >= 0 and max(ids) < self._model.vocab_size

    def _run(self, works: Sequence[Work]) -> dict[int, int | None]:
        """One forward pass; the token sampled for each slot that emits, None where there is none to be had."""
        batch = build_batch(lay_out(works, GROUP_TOKENS[self._model.device.type]), self._tables.tensor, self._target)
        logits = self._model.logits(batch, self._pool)
        chosen = sample(logits, [_draw(work.state) for work in batch.emitting])
        return {work.state.slot: token for work, token in zip(batch.emitting, chosen, strict=True)}


def _draw(state: SlotState) -> Draw:
    sampling = state.sampling
    number = uniform(sampling.seed, sampling.choice, state.emitted)
    return Draw(temperature=sampling.temperature, top_p=sampling.top_p, number=number)


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
        sampling=Sampling(temperature=1.0, top_p=0.9, ignore_eos=True),
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
