"""The engine for a device that works by itself: a step begins before the last one's tokens are read.

Between two steps the host has much to do that needs no token's value: take in the plan, lay out the step, send its
integers. So a step is *begun* (queued on the device, behind the last one) and *completed* later (its tokens read,
its report made); the server begins the next one in between, when it comes. What makes that exact:

* the token that a decode starts from is still on the device, and is taken from there (``inputs.py``);
* whether a sequence ends by its length is known without reading; whether by an eos is not. One that turns out to have
  ended computes one token more in the step that was begun meanwhile, into blocks that are still its own, and that token
  is dropped: its report says what a report of an engine that waits would say;
* the random number of a token depends on its position alone, so it can be drawn ahead.

A step that needs to know the tokens so far (penalties), or whose tokens are to be scored (log-probabilities), waits for
the last one, and is computed at once: such steps pay for it, others do not.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from workers.attention import Backend
from workers.cuda.decodes import Decodes
from workers.cuda.inputs import LastTokens, flat_inputs
from workers.cuda.readback import Readback
from workers.engine import Engine
from workers.kv_cache import KVPool
from workers.model import CausalModel
from workers.sampler import choose
from workers.slots import Work
from workers.wire import ModelCard, PlanMessage, ReportMessage, TokenizerFiles


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """A step on the device. ``readback`` [2, emitting]: tokens, and whether each is one. ``failed``: slots, at once.

    ``live_blocks`` and ``host_blocks`` are those of the plan, whatever later ones have done since.
    """

    plan: PlanMessage
    works: tuple[Work, ...]
    emitting: tuple[Work, ...]
    failed: frozenset[int]
    readback: Readback
    live_blocks: int
    host_blocks: int


class OverlappingEngine(Engine):
    """An ``OverlappingExecutor``; used from one thread. ``decodes``: how pure decodes run, if not as other steps do."""

    def __init__(
        self,
        *,
        model: CausalModel,
        pool: KVPool,
        card: ModelCard,
        files: TokenizerFiles,
        max_slots: int,
        host_blocks: int,
        backend: Backend,
        last: LastTokens,
        decodes: Decodes | None,
    ) -> None:
        super().__init__(
            model=model,
            pool=pool,
            card=card,
            files=files,
            max_slots=max_slots,
            host_blocks=host_blocks,
            backend=backend,
        )
        self._last = last
        self._decodes = decodes
        self._begun: deque[Begun] = deque()
        self._reports: deque[ReportMessage] = deque()  # of steps older than all those begun

    def reset(self) -> None:
        super().reset()
        self._begun.clear()
        self._reports.clear()

    def execute(self, plan: PlanMessage) -> ReportMessage:
        """Begin and complete, with nothing begun before."""
        self.begin(plan)
        return self.complete()

    @torch.inference_mode()
    def begin(self, plan: PlanMessage) -> Callable[[], object]:
        """Queue an iteration on the device; what waits for it. Raises PlanError for a plan that breaks the rules."""
        works = self._take_in(plan)
        if any(self._needs_reading(work) for work in works):
            while self._begun:
                self._reports.append(self._read(self._begun.popleft()))
            going_on = [work for work in works if work.state.finished is None]
            self._reports.append(self._carry_out(plan, going_on))
            return lambda: None
        sound = [work for work in works if self._is_sound(work)]
        failed = {work.state.slot for work in works} - {work.state.slot for work in sound}
        for work in works:
            if work.state.slot in failed:
                self._slots.fail(work.state)
        emitting, sampled = self._launch(sound)
        for work in emitting:
            self._slots.expect(work.state)
        readback = Readback(sampled)
        self._begun.append(
            Begun(
                plan=plan,
                works=works,
                emitting=tuple(emitting),
                failed=frozenset(failed),
                readback=readback,
                live_blocks=self._slots.live_blocks,
                host_blocks=self._slots.host_blocks,
            )
        )
        return readback.wait

    def complete(self) -> ReportMessage:
        """The report of the oldest step begun, for which the host may have to wait."""
        if self._reports:
            return self._reports.popleft()
        return self._read(self._begun.popleft())

    # --- begin --------------------------------------------------------------------------------------------------------

    def _needs_reading(self, work: Work) -> bool:
        sampling = work.state.sampling
        asks_for_scores = sampling.top_logprobs is not None or sampling.prompt_logprobs is not None
        return asks_for_scores or self._sampling.looks_back(work.state.slot)

    def _launch(self, works: Sequence[Work]) -> tuple[Sequence[Work], Tensor]:
        """Whose tokens are sampled, in the order of the second's columns: tokens, and whether each is one."""
        if not works:
            return (), torch.empty(2, 0, dtype=torch.int64)
        bucket = None if self._decodes is None else self._decodes.bucket_of(works)
        if self._decodes is None or bucket is None:
            emitting, logits = self._mixed(works)
        else:
            emitting, logits = works, self._decodes.logits(works, self._tables.tensor, bucket)
        choice = choose(logits, self._sampling.draws(emitting))
        slots = torch.tensor([work.state.slot for work in emitting], dtype=torch.int64)
        self._last.note(slots, choice.tokens)
        return emitting, torch.stack((choice.tokens, choice.is_sound.to(torch.int64)))

    def _mixed(self, works: Sequence[Work]) -> tuple[Sequence[Work], Tensor]:
        assert isinstance(self._model, CausalModel)  # noqa: S101 -- the fast model is the CPU's
        step = self._prepare(works)
        if any(work.state.unread for work in works):
            inputs = flat_inputs(step.works, self._tables.tensor, block_size=self.block_size)
            step = replace(step, ids=self._last.feed(inputs.on(self._model.device)))
        return step.emitting, self._model.logits(step, step.emit_rows)

    # --- complete -----------------------------------------------------------------------------------------------------

    def _read(self, begun: Begun) -> ReportMessage:
        tokens, is_sound = begun.readback.wait().tolist()
        sampled = {
            work.state.slot: token if sound else None
            for work, token, sound in zip(begun.emitting, tokens, is_sound, strict=True)
        }
        emitted: list[tuple[int, int]] = []
        finished: list[tuple[int, str]] = []
        for work in begun.works:
            state = work.state
            if state.slot in begun.failed:
                finished.append((state.slot, "failed"))
            elif state.finished in ("stop", "failed") or not work.emits:
                continue  # it ended in an earlier step, which was not read when this one began
            elif (token := sampled[state.slot]) is None:
                finished.append((state.slot, str(self._slots.fail(state))))
            else:
                emitted.append((state.slot, token))
                if reason := self._slots.read(state, token, computed=work.start + work.length):
                    finished.append((state.slot, str(reason)))
        return ReportMessage(
            step=begun.plan.step,
            epoch=begun.plan.epoch,
            tokens=tuple(emitted),
            finished=tuple(finished),
            live_blocks=begun.live_blocks,
            busy_us=0,
            idle_us=0,
            host_blocks=begun.host_blocks,
        )
