"""Settings for an engine in tests, and a small random driver that runs requests on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import torch
from torch import Tensor
from transformers import PreTrainedModel

from workers.engine import Engine
from workers.model import CausalModel
from workers.wire import BlockGrowth, NewSequence, PlanMessage, PrefillSpan, ReportMessage, Sampling

GREEDY = Sampling(temperature=0.0)
TIE = 1e-4
NOTHING = PlanMessage(step=0, epoch=1, frees=(), starts=(), grows=(), copies=(), prefill=(), decode=())


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The settings that an engine reads."""

    model: str | None
    served_model_name: str | None = None
    device: str = "cpu"
    dtype: str = "float32"
    max_slots: int = 4
    kv_blocks: int | None = None
    block_size: int = 4
    swap_mib: int | None = None
    max_model_len: int | None = None
    threads: int | None = 2
    deterministic: bool = False
    forward: str = "auto"
    quantize: str | None = None
    model_cache: Path | None = None


def embedding_of(engine: Engine) -> Tensor:
    """The weights that tests poison, whosever forward computes."""
    model = engine._model
    return model.module.get_input_embeddings().weight if isinstance(model, CausalModel) else model._embedding


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    tokens: tuple[int, ...]
    max_tokens: int = 8
    sampling: Sampling = GREEDY
    emitted: int = 0


@dataclass(slots=True, kw_only=True)
class Progress:
    """How far one request is, as its driver sees it."""

    request: Request
    slot: int
    blocks: list[int]
    computed: int = 0
    output: list[int] = field(default_factory=list)

    @property
    def length(self) -> int:
        return len(self.request.tokens) + len(self.output)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    tokens: list[int]
    finish: str


class RandomDriver:
    """Runs requests in a random mixture of chunks, decodes, pauses, slots and blocks, and checks each report."""

    def __init__(self, engine: Engine, random: Random, *, largest_chunk: int = 9) -> None:
        self._engine = engine
        self._random = random
        self._largest_chunk = largest_chunk
        self._free_slots = random.sample(range(engine.max_slots), engine.max_slots)
        self._free_blocks = random.sample(range(engine.kv_blocks), engine.kv_blocks)
        self._running: dict[int, Progress] = {}
        self._ended: list[Progress] = []
        self._step = 0

    def run(self, requests: Sequence[Request]) -> list[Outcome]:
        """The outcome of each request, in order; afterwards the engine is empty."""
        waiting = list(enumerate(requests))
        indices: dict[int, int] = {}
        outcomes: dict[int, Outcome] = {}
        while waiting or self._running or self._ended:
            frees = self._leave()
            starts = []
            while waiting and self._free_slots and self._random.random() < 0.7:
                index, request = waiting.pop(0)
                starts.append(self._join(request, index))
                indices[starts[-1].slot] = index
            report = self._execute(frees, starts)
            for slot, reason in report.finished:
                progress = self._running.pop(slot)
                self._ended.append(progress)
                outcomes[indices[slot]] = Outcome(tokens=progress.output, finish=reason)
        return [outcomes[index] for index in range(len(requests))]

    def _leave(self) -> list[int]:
        frees = [progress.slot for progress in self._ended]
        for progress in self._ended:
            self._free_slots.append(progress.slot)
            self._free_blocks += progress.blocks
        self._ended.clear()
        return frees

    def _join(self, request: Request, index: int) -> NewSequence:
        slot = self._free_slots.pop()
        needed = -(-len(request.tokens) // self._engine.block_size)
        progress = Progress(request=request, slot=slot, blocks=[self._free_blocks.pop() for _ in range(needed)])
        self._running[slot] = progress
        return NewSequence(
            slot=slot,
            sequence_id=f"request-{index}",
            tokens=request.tokens,
            emitted=request.emitted,
            computed=0,
            max_tokens=request.max_tokens,
            sampling=request.sampling,
            blocks=tuple(progress.blocks),
        )

    def _execute(self, frees: list[int], starts: list[NewSequence]) -> ReportMessage:
        prefill, decode, grows = [], [], []
        for slot in self._random.sample(list(self._running), len(self._running)):
            progress = self._running[slot]
            if self._random.random() < 0.1:
                continue  # a sequence may sit out an iteration
            if progress.computed < progress.length - 1 or not progress.output:
                length = min(self._random.randint(1, self._largest_chunk), progress.length - progress.computed)
                emits = progress.computed + length == progress.length
                prefill.append(PrefillSpan(slot=slot, start=progress.computed, length=length, emits=emits))
                progress.computed += length
            else:
                if progress.length > len(progress.blocks) * self._engine.block_size:
                    progress.blocks.append(self._free_blocks.pop())
                    grows.append(BlockGrowth(slot=slot, blocks=(progress.blocks[-1],)))
                decode.append(slot)
                progress.computed += 1
        self._step += 1
        report = self._engine.execute(
            PlanMessage(
                step=self._step,
                epoch=1,
                frees=tuple(frees),
                starts=tuple(starts),
                grows=tuple(grows),
                copies=(),
                prefill=tuple(prefill),
                decode=tuple(decode),
            )
        )
        emitting = [*decode, *(chunk.slot for chunk in prefill if chunk.emits)]
        failed = [slot for slot, reason in report.finished if reason == "failed"]
        assert [slot for slot, _ in report.tokens] == [slot for slot in emitting if slot not in failed]
        assert report.live_blocks == sum(len(progress.blocks) for progress in self._running.values())
        assert (report.step, report.epoch) == (self._step, 1)
        for slot, token in report.tokens:
            self._running[slot].output.append(token)
        return report


# --- the reference ----------------------------------------------------------------------------------------------------


def reference_output(model: PreTrainedModel, request: Request) -> list[int]:
    """What transformers' own ``generate`` makes of a greedy request, its last eos included."""
    ids = torch.tensor([request.tokens])
    output = model.generate(
        ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=request.max_tokens, pad_token_id=0
    )
    return output[0, ids.shape[1] :].tolist()


def ties_between(model: PreTrainedModel, request: Request, ours: list[int], theirs: list[int]) -> int:
    """0 if the outputs are equal, 1 if they part where the two best logits are closer than TIE. Else fails."""
    if ours == theirs:
        return 0
    same = next(index for index, pair in enumerate(zip(ours, theirs, strict=False)) if pair[0] != pair[1])
    with torch.inference_mode():
        logits = model(torch.tensor([[*request.tokens, *theirs[:same]]])).logits[0, -1]
    best = logits.topk(2).values
    gap = float(best[0] - best[1])
    assert gap < TIE, f"outputs part at token {same} where the best token leads by {gap}: {ours} is not {theirs}"
    return 1
