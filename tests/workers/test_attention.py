"""Paged attention against transformers' dense one: the logits, not only the tokens that they choose."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.workers.tiny_models import CONFIGS, VOCAB_SIZE, save_tiny_model
from workers.attention import ATTENTION_NAME, GatherBackend, LayerProbe
from workers.batch import BlockTables, Target
from workers.errors import LoadError
from workers.kv_cache import KVPool
from workers.model import load_model
from workers.slots import SlotState, Work
from workers.wire import Sampling

pytestmark = pytest.mark.torch

CPU = torch.device("cpu")
BLOCK_SIZE, NUM_BLOCKS = 4, 60


@pytest.mark.parametrize("name", CONFIGS)
def test_logits_are_those_of_the_dense_model(name: str, tmp_path: Path) -> None:
    """Four sequences advance by random steps in shared batches; every position's logits are compared."""
    folder = save_tiny_model(tmp_path, CONFIGS[name])
    model = load_model(folder, CPU, torch.float32)
    reference = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    pool = KVPool(layers=model.layers, num_blocks=NUM_BLOCKS, block_size=BLOCK_SIZE, dtype=torch.float32, device=CPU)
    target = Target(
        block_size=BLOCK_SIZE, kinds=tuple({layer.kind for layer in model.layers}), dtype=torch.float32, device=CPU
    )
    backend = GatherBackend(pool, target, group_tokens=40)
    random = Random(11)
    tables = BlockTables(max_slots=4, max_blocks=15, null_block=pool.null_block)
    states = [state_of(slot, random) for slot in range(4)]
    blocks = random.sample(range(NUM_BLOCKS), NUM_BLOCKS)
    for state in states:
        tables.start(state.slot, blocks[state.slot * 15 : state.slot * 15 + 15])
    with torch.inference_mode():
        dense = [reference(torch.tensor([state.tokens])).logits[0] for state in states]
        compared = 0
        while works := [next_work(state, random) for state in states if state.computed < len(state.tokens)]:
            step = backend.prepare(works, tables.tensor)
            for work, row in zip(step.emitting, model.logits(step, step.emit_rows), strict=True):
                torch.testing.assert_close(row, dense[work.state.slot][work.start + work.length - 1], **CLOSE)
                compared += 1
    assert compared > 20


CLOSE = {"rtol": 1e-4, "atol": 1e-4}


def state_of(slot: int, random: Random) -> SlotState:
    tokens = [random.randrange(VOCAB_SIZE) for _ in range(random.randint(20, 60))]
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


def next_work(state: SlotState, random: Random) -> Work:
    """One token or a chunk, always emitting, so that its logits can be compared."""
    length = min(random.choice((1, 1, 1, 2, 5, 11)), len(state.tokens) - state.computed)
    state.computed += length
    return Work(state=state, start=state.computed - length, length=length, emits=True)


def test_no_dense_mask_is_built(tmp_path: Path) -> None:
    """A mask of tokens by tokens would cost more than the attention, and mix up the sequences of a batch."""
    model = load_model(save_tiny_model(tmp_path, CONFIGS["llama"]), CPU, torch.float32)
    assert model.module.config._attn_implementation == ATTENTION_NAME
    probe = LayerProbe()
    with pytest.raises(LoadError, match="mask of its own"):
        probe.check(torch.nn.Module(), torch.zeros(1, 1, 2, 2), {})


@pytest.mark.parametrize(
    ("others", "sentence"),
    [
        ({"s_aux": torch.zeros(4)}, "attends with s_aux"),
        ({"is_causal": False}, "looks ahead"),
        ({}, "does not say which layer"),
    ],
)
def test_attention_of_another_kind_is_refused(others: dict[str, object], sentence: str) -> None:
    """Serving it without what it asks for would give wrong text without a word."""
    with pytest.raises(LoadError, match=sentence):
        LayerProbe().check(torch.nn.Module(), None, dict(others))


def test_layers_that_do_not_attend_through_the_interface_are_noticed() -> None:
    """A hybrid model with recurrent layers keeps state that no KV block holds."""
    with pytest.raises(LoadError, match="Only 0 of the model's 2 layers"):
        LayerProbe().layers(expected=2)
