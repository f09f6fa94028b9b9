"""Transformers' own forward, timed: its usual attention and its own growing cache, all sequences of one length."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from transformers import AutoModelForCausalLM, DynamicCache

from workers.host import usable_cores
from workers.weights import default_cache, find_model

TOKENS = tuple(10 + 37 * at % 1000 for at in range(4096))


class Dense:
    """The model as transformers serves it. Times are medians, in milliseconds."""

    def __init__(
        self,
        *,
        model: str,
        dtype: torch.dtype,
        threads: int | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._clock = clock
        self._threads = threads or usable_cores()
        folder = find_model(model, default_cache(), print).path
        self._model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)

    @torch.inference_mode()
    def decode_ms(self, count: int, *, context: int, repeats: int = 7) -> float:
        """One more token for each of ``count`` sequences, the choice of the best one included."""
        with _torch_threads(self._threads):
            return self._decode_ms(count, context=context, repeats=repeats)

    @torch.inference_mode()
    def prefill_ms(self, length: int, *, repeats: int = 3) -> float:
        with _torch_threads(self._threads):
            return self._prefill_ms(length, repeats=repeats)

    def _decode_ms(self, count: int, *, context: int, repeats: int) -> float:
        cache = DynamicCache(config=self._model.config)
        prompt = torch.tensor([TOKENS[:context]] * count)
        self._model(input_ids=prompt, past_key_values=cache, use_cache=True, logits_to_keep=1)
        times = []
        for _ in range(repeats + 1):
            began = self._clock()
            output = self._model(
                input_ids=torch.full((count, 1), 10), past_key_values=cache, use_cache=True, logits_to_keep=1
            )
            output.logits[:, -1].argmax(dim=-1).tolist()
            times.append(self._clock() - began)
        return 1000 * statistics.median(times[1:])

    def _prefill_ms(self, length: int, *, repeats: int) -> float:
        times = []
        for _ in range(repeats + 1):
            began = self._clock()
            self._model(input_ids=torch.tensor([TOKENS[:length]]), use_cache=True, logits_to_keep=1)
            times.append(self._clock() - began)
        return 1000 * statistics.median(times[1:])


@contextmanager
def _torch_threads(count: int) -> Iterator[None]:
    """An engine in this process may want another number."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
