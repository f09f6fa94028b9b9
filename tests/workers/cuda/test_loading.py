"""From a model to an engine on its GPU: what is chosen, measured and said, with a CPU in the GPU's place."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.workers.cuda.fake_varlen import FLASH_3, VARLEN_2_11, FakeVarlen
from tests.workers.engine_support import Options
from tests.workers.planner import Planner, Request
from tests.workers.tiny_models import CONFIGS, CONTEXT, save_tiny_model
from workers.cuda import decodes, loading, trial
from workers.cuda.buckets import TableUse, decode_buckets
from workers.cuda.decodes import Decoder, Replay
from workers.cuda.inputs import StepInputs
from workers.cuda.loading import Setup, prepare
from workers.cuda.memory import BYTES_PER_GRAPH
from workers.errors import LoadError
from workers.kv_cache import KVPool, block_bytes
from workers.model import CausalModel, load_model
from workers.tokenizer_files import read_tokenizer_files
from workers.wire import ModelCard

pytestmark = pytest.mark.torch

CPU = torch.device("cpu")
FREE = 1 << 30
GRAPH = 5 << 20


class FakeGraph:
    """Runs again what it was captured from."""

    def __init__(self, decoder: Decoder, inputs: StepInputs, logits: torch.Tensor) -> None:
        self._decoder = decoder
        self._inputs = inputs
        self._logits = logits
        self.replays = 0

    def replay(self) -> None:
        self._logits.copy_(self._decoder.logits(self._inputs))
        self.replays += 1


class FakeGpu:
    """As much of torch.cuda as loading asks, in terms of the CPU."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.free = FREE
        self.graphs: list[FakeGraph] = []
        for name, stand_in in {
            "get_device_capability": lambda _: (8, 0),
            "synchronize": lambda: None,
            "empty_cache": lambda: None,
            "mem_get_info": lambda _: (self.free, FREE),
            "graph_pool_handle": object,
        }.items():
            monkeypatch.setattr(torch.cuda, name, stand_in)
        monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor)
        monkeypatch.setattr(trial, "capture", self.capture)
        monkeypatch.setattr(decodes, "capture", self.capture)

    def capture(self, decoder: Decoder, inputs: StepInputs, logits: torch.Tensor, _handle: object) -> Replay:
        self.free -= GRAPH
        self.graphs.append(FakeGraph(decoder, inputs, logits))
        return Replay(graph=self.graphs[-1], inputs=inputs, logits=logits)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    return FakeGpu(monkeypatch)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> CausalModel:
    return load_model(save_tiny_model(tmp_path_factory.mktemp("model"), CONFIGS["llama"]), CPU, torch.bfloat16)


def prepare_with(model: CausalModel, monkeypatch: pytest.MonkeyPatch, function: FakeVarlen, said: list[str]) -> Setup:
    monkeypatch.setattr(loading, "torchs_varlen_attn", lambda: function)
    return prepare(model, Options(model=None, max_slots=4, block_size=4), CONTEXT, said.append)


def test_pages_are_read_in_place_where_that_works_and_the_log_says_so_once(
    gpu: FakeGpu, model: CausalModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is left for the pool is what the step left, with the trial's pool, without the graphs to come."""
    said: list[str] = []
    setup = prepare_with(model, monkeypatch, FLASH_3, said)
    assert said == [
        "Attention reads blocks in place: varlen_attn reads pages of 4 tokens in place (torch's own kernels)"
    ]
    assert setup.buckets == decode_buckets(max_slots=4, max_blocks=CONTEXT // 4, block_size=4, use=TableUse.SKIPPED)
    trial_pool = 4 * (CONTEXT // 4) * block_bytes(model.layers, 4, torch.bfloat16)
    assert setup.room_bytes == FREE + trial_pool - GRAPH - 2 * BYTES_PER_GRAPH
    assert len(gpu.graphs) == 1


@pytest.mark.usefixtures("gpu")
def test_an_old_torch_gathers_and_the_log_says_why(model: CausalModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """An operator who wonders about speed finds the reason in the log."""
    said: list[str] = []
    setup = prepare_with(model, monkeypatch, VARLEN_2_11, said)
    assert said == ["Attention gathers blocks: this torch's varlen_attn has no block_table, enable_gqa, seqused_k"]
    assert (setup.kernel, setup.block_size) == (None, 4)
    assert setup.buckets == decode_buckets(max_slots=4, max_blocks=CONTEXT // 4, block_size=4, use=TableUse.READ)


@pytest.mark.usefixtures("gpu")
def test_a_model_that_cannot_be_captured_serves_without_graphs(
    model: CausalModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mixture of experts asks the host where its tokens go."""

    def fail(*_: object) -> None:
        raise RuntimeError("operation not permitted when stream is capturing\nCUDA kernel errors might be")

    monkeypatch.setattr(trial, "capture", fail)
    said: list[str] = []
    setup = prepare_with(model, monkeypatch, FLASH_3, said)
    assert setup.buckets is None
    assert said[1:] == ["Decodes run without CUDA graphs: operation not permitted when stream is capturing"]


@pytest.mark.usefixtures("gpu")
def test_a_gpu_too_small_for_a_step_is_refused_in_a_sentence(
    model: CausalModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At load, not at the first long prompt."""

    def fail(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate")

    monkeypatch.setattr(CausalModel, "logits", fail)
    with pytest.raises(LoadError, match="not enough memory on the GPU for a step of 256 tokens beside the model"):
        prepare_with(model, monkeypatch, FLASH_3, [])


@pytest.mark.parametrize("function", [FLASH_3, VARLEN_2_11], ids=["varlen", "gather"])
def test_the_engine_replays_its_graphs(
    gpu: FakeGpu, model: CausalModel, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, function: FakeVarlen
) -> None:
    """Each decode copies its integers into the inputs of its bucket; the tokens are those without graphs."""
    setup = prepare_with(model, monkeypatch, function, [])
    outputs = []
    for buckets in (setup.buckets, None):
        pool = KVPool(layers=model.layers, num_blocks=40, block_size=4, dtype=torch.bfloat16, device=CPU)
        files = read_tokenizer_files(save_tiny_model(tmp_path / str(len(outputs)), CONFIGS["llama"]))
        card = ModelCard(
            name="tiny",
            context_length=CONTEXT,
            vocab_size=model.vocab_size,
            eos_ids=(),
            tokenizer_digest=files.digest,
            dtype="bfloat16",
            device="cpu",
        )
        engine = loading.build(
            Setup(kernel=setup.kernel, block_size=4, room_bytes=0, buckets=buckets),
            model=model,
            pool=pool,
            card=card,
            files=files,
            max_slots=4,
            host_blocks=0,
        )
        planner = Planner(engine)
        planner.iterate(starts=[Request(prompt=(5, 6, 7 + salt), max_tokens=9) for salt in range(3)])
        running = planner.running()
        planner.finish()
        outputs.append([one.output for one in running])
    assert outputs[0] == outputs[1]
    assert sum(graph.replays for graph in gpu.graphs) == 8
