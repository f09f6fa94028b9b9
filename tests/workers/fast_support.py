"""Tiny models that the fused forward serves, and sequences to run through it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from random import Random

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, LlamaConfig, MistralConfig, PreTrainedConfig, Qwen2Config, Qwen3Config

from tests.workers.tiny_models import EOS, VOCAB_SIZE, save_tiny_model
from workers.batch import BlockTables
from workers.engine import gather_backend
from workers.fast import build
from workers.fast.assemble import fast_model
from workers.fast.forward import FastModel, FastPasses
from workers.fast.packed import PackedModel
from workers.kv_cache import SPARE_BLOCKS, KVPool
from workers.model import load_model
from workers.slots import SlotState, Work
from workers.weights import default_cache
from workers.wire import Sampling

CPU = torch.device("cpu")
BLOCK_SIZE = 16
CONTEXT = 320
EMULATED_TILES = Path(__file__).parent / "native" / "emulated_tiles.h"
TRAPPED_TILES = EMULATED_TILES.with_name("trapped_tiles.cpp")

_SHAPE = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 66,  # no multiple of a vector
    "intermediate_size": 104,  # no multiple of half a panel
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "head_dim": 16,
    "max_position_embeddings": CONTEXT,
    "initializer_range": 0.2,
    "bos_token_id": 0,
    "eos_token_id": EOS,
    "pad_token_id": 0,
}

FAMILY: Mapping[str, PreTrainedConfig] = {
    "llama with tied embeddings": LlamaConfig(**_SHAPE, num_key_value_heads=2, tie_word_embeddings=True),
    "llama with biases everywhere": LlamaConfig(**_SHAPE, num_key_value_heads=6, attention_bias=True, mlp_bias=True),
    "llama with scaled positions": LlamaConfig(
        **_SHAPE,
        num_key_value_heads=1,
        rope_parameters={"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0},
    ),
    "mistral with a window of 40": MistralConfig(**_SHAPE, num_key_value_heads=2, sliding_window=40),
    "qwen2": Qwen2Config(**_SHAPE, num_key_value_heads=3),
    "qwen3 with heads of 32": Qwen3Config(**{**_SHAPE, "head_dim": 32}, num_key_value_heads=2),
}


def make_fast(
    folder: Path,
    config: PreTrainedConfig,
    dtype: torch.dtype,
    *,
    weights: torch.dtype | None = None,
    block_size: int = BLOCK_SIZE,
    threads: int = 2,
) -> FastModel:
    model = load_model(save_tiny_model(folder, config), CPU, dtype)
    return fast_model(model, block_size=block_size, cache=default_cache(), weights=weights or dtype, threads=threads)


def compile_for_tiles(monkeypatch: pytest.MonkeyPatch, *flags: str) -> None:
    """From now on kernels have tiles, emulated ones, whatever this processor has."""
    _add_flags(monkeypatch, f'-DTILES_STAND_IN="{EMULATED_TILES}"', *flags, sources=[EMULATED_TILES])


def compile_for_trapped_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on kernels use the instructions of AMX; each traps and is emulated where the processor has none."""
    flags = ("-mamx-tile", "-mamx-bf16", "-Wl,-Bsymbolic", f"-I{TRAPPED_TILES.parent}", str(TRAPPED_TILES))
    _add_flags(monkeypatch, *flags, sources=[TRAPPED_TILES, EMULATED_TILES])


def _add_flags(monkeypatch: pytest.MonkeyPatch, *flags: str, sources: Sequence[Path]) -> None:
    """Also one that names the content of ``sources``, since kernels are kept under a digest of flags and their own."""
    content = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:16]
    monkeypatch.setattr(build, "FLAGS", (*build.FLAGS, *flags, f"-DTESTED_{content}"))


class StepPasses:
    """A model that attends through what a step brings, run as the engine runs it."""

    def __init__(self, model: PackedModel, pool: KVPool, tables: Tensor) -> None:
        self._model, self._tables, self._backend = model, tables, gather_backend(model, pool)

    @torch.inference_mode()
    def emitted(self, works: Sequence[Work]) -> tuple[Sequence[Work], Tensor]:
        step = self._backend.prepare(works, self._tables)
        return step.emitting, self._model.logits(step, step.emit_rows)

    @torch.inference_mode()
    def all_logits(self, work: Work) -> Tensor:
        return self._model.logits(self._backend.prepare([work], self._tables), torch.arange(work.length))


class Bench:
    """Four sequences of random tokens in scattered blocks, and transformers' logits for each of their positions."""

    def __init__(
        self,
        folder: Path,
        model: FastModel | PackedModel,
        *,
        lengths: Sequence[int] = (300, 150, 17, 33),
        block_size: int = BLOCK_SIZE,
    ) -> None:
        random = Random(11)
        num_blocks = 4 * CONTEXT // block_size
        pool = KVPool(layers=model.layers, num_blocks=num_blocks, block_size=block_size, dtype=model.dtype, device=CPU)
        tables = BlockTables(max_slots=4, max_blocks=CONTEXT // block_size, null_block=pool.null_block)
        blocks = random.sample(range(num_blocks), num_blocks)
        share = num_blocks // 4
        for slot in range(4):
            tables.start(slot, blocks[slot * share : (slot + 1) * share])
        self._pool, self._tables = pool, tables.tensor
        self.passes = (
            FastPasses(model, pool, tables.tensor)
            if isinstance(model, FastModel)
            else StepPasses(model, pool, tables.tensor)
        )
        self.states = [_state(slot, [random.randrange(VOCAB_SIZE) for _ in range(n)]) for slot, n in enumerate(lengths)]
        reference = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
        with torch.inference_mode():
            self.dense: list[Tensor] = [reference(torch.tensor([state.tokens])).logits[0] for state in self.states]

    def advance(self, random: Random) -> Iterator[list[Work]]:
        """Every sequence by one token or a chunk at a time, each emitting, in shared steps until all are done."""
        done = [0] * len(self.states)
        while True:
            works = []
            for state in self.states:
                left = len(state.tokens) - done[state.slot]
                length = min(random.choice((1, 1, 1, 2, 5, 30)), left)
                if length:
                    works.append(Work(state=state, start=done[state.slot], length=length, emits=True))
                    done[state.slot] += length
            if not works:
                return
            yield works

    def break_numbers(self, slot: int) -> None:
        """Put NaN wherever keys and values of this sequence lie."""
        for matrix in [matrix for pair in self._pool.matrices for matrix in pair]:
            matrix.view(self._pool.num_blocks + SPARE_BLOCKS, -1)[self._tables[slot]] = float("nan")

    def expected(self, work: Work) -> Tensor:
        return self.dense[work.state.slot][work.start + work.length - 1]


def square_distances(bench: Bench, folder: Path) -> tuple[float, float]:
    """Mean square distances to the exact logits, summed over sequences: ours, and transformers' in bfloat16."""
    rounded = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16, attn_implementation="eager")
    ours_off, theirs_off = 0.0, 0.0
    for state in bench.states:
        ours = bench.passes.all_logits(Work(state=state, start=0, length=len(state.tokens), emits=True))
        exact = bench.dense[state.slot]
        with torch.inference_mode():
            theirs = rounded(torch.tensor([state.tokens])).logits[0].float()
        ours_off += float((ours - exact).square().mean())
        theirs_off += float((theirs - exact).square().mean())
    return ours_off, theirs_off


def _state(slot: int, tokens: list[int]) -> SlotState:
    return SlotState(
        slot=slot,
        sequence_id=str(slot),
        tokens=tokens,
        prompt_length=len(tokens),
        emitted=0,
        computed=0,
        max_tokens=1,
        sampling=Sampling(),
        blocks=[],
    )
