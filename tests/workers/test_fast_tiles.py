"""Products in AMX tiles, on a processor that has them and on one that has not, and which products serve."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.workers.engine_support import Options
from tests.workers.fast_support import (
    FAMILY,
    Bench,
    compile_for_tiles,
    compile_for_trapped_tiles,
    make_fast,
    square_distances,
)
from tests.workers.tiny_models import save_tiny_model
from workers.fast import build
from workers.fast.build import load_library
from workers.fast.kernels import Buffer, Kernels, Linear
from workers.fast.packing import pack
from workers.fast.structures import Products
from workers.loading import load_engine
from workers.slots import Work
from workers.weights import default_cache

pytestmark = pytest.mark.torch


@pytest.fixture
def tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels over emulated tiles."""
    compile_for_tiles(monkeypatch)


def kernels() -> Kernels:
    return Kernels(load_library(default_cache()), dtype=torch.bfloat16, threads=2)


def test_a_processor_multiplies_in_its_tiles_if_it_has_them() -> None:
    """All tests of the fused forward in bfloat16 run on the processor's own products; here one sees which those are."""
    has_tiles = {"amx_tile", "amx_bf16"} <= set(build._processor().split())
    assert kernels().products == (Products.TILES if has_tiles else Products.NO_TILES)


@pytest.mark.usefixtures("tiles")
@pytest.mark.parametrize("width", [2, 30, 32, 66, 128])
@pytest.mark.parametrize("outputs", [5, 48, 100])
def test_a_linear_is_exact_and_a_row_has_the_same_bits_in_any_number_of_rows(width: int, outputs: int) -> None:
    """Sixteen rows fill a tile, and 32 a product; every number of rows around them is its own case."""
    random = torch.Generator().manual_seed(width * outputs)
    weight = torch.randn(outputs, width, generator=random).bfloat16()
    inputs = torch.randn(80, width, generator=random).bfloat16()
    all_kernels = kernels()
    assert all_kernels.products == Products.TILES
    linear = Linear(all_kernels, pack(weight, None, panel=all_kernels.panel))
    alone = torch.cat([linear.logits(Buffer.of(inputs[row : row + 1].clone()), 1) for row in range(len(inputs))])
    torch.testing.assert_close(alone, (inputs.double() @ weight.double().T).float(), rtol=1e-5, atol=1e-4)
    for rows in (2, 15, 16, 17, 31, 32, 33, 48, 63, 64, 65, 80):
        assert torch.equal(linear.logits(Buffer.of(inputs[:rows].clone()), rows), alone[:rows])


@pytest.mark.usefixtures("tiles")
def test_nothing_beyond_a_matrix_is_read() -> None:
    """What lies behind the last row, or a width that is no multiple of 32, may be anything, or nobody's memory."""
    weight, behind = torch.ones(48, 34).bfloat16(), torch.full((8, 34), float("nan")).bfloat16()
    all_kernels = kernels()
    linear = Linear(all_kernels, pack(weight, None, panel=all_kernels.panel))
    for rows in (1, 17, 33):
        inputs = torch.cat([torch.ones(rows, 34).bfloat16(), behind])
        assert torch.equal(linear.logits(Buffer.of(inputs), rows), torch.full((rows, 48), 34.0))


@pytest.mark.usefixtures("tiles")
@pytest.mark.parametrize("name", ["llama with scaled positions", "qwen3 with heads of 32"])
def test_blocks_that_fill_a_tile_are_as_exact(name: str, tmp_path: Path) -> None:
    """Of blocks of 32 tokens a tile takes all values at once; an odd sixteen comes with what lies behind it."""
    model = make_fast(tmp_path, FAMILY[name], torch.bfloat16, block_size=32)
    ours_off, theirs_off = square_distances(Bench(tmp_path, model, lengths=(110, 31, 17, 1), block_size=32), tmp_path)
    assert ours_off < 1.1 * theirs_off


@pytest.mark.x86
@pytest.mark.parametrize("name", ["mistral with a window of 40", "qwen3 with heads of 32"])
def test_the_instructions_do_what_the_emulation_does(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The code for processors with AMX, run there or trapped here, gives the bits of the emulation, to the last."""
    with monkeypatch.context() as patch:
        compile_for_tiles(patch)
        emulated = all_logits(tmp_path, name)
    compile_for_trapped_tiles(monkeypatch)
    assert kernels().products == Products.TILES
    assert torch.equal(all_logits(tmp_path, name), emulated)


SAID = {
    "in AMX tiles": (),
    "in vectors: Linux does not grant this process AMX tiles": ("-DEMULATE_A_REFUSAL", "-O1"),
    "in vectors: AMX tiles failed their check against them": ("-DEMULATE_A_FAULT", "-O1"),
}


@pytest.mark.parametrize("said", SAID)
def test_tiles_that_are_refused_or_wrong_are_not_used_and_the_log_says_what_is(
    said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine whose tiles compute something else must serve all the same, and right."""
    compile_for_tiles(monkeypatch, *SAID[said])
    folder = save_tiny_model(tmp_path, FAMILY["qwen2"])
    lines: list[str] = []
    load_engine(Options(model=str(folder), block_size=16, dtype="bfloat16"), lines.append)
    assert f"Computing with the fused forward; bfloat16 is multiplied {said}" in lines


def all_logits(folder: Path, name: str) -> Tensor:
    """Of four sequences, through the products that are there now."""
    bench = Bench(folder, make_fast(folder, FAMILY[name], torch.bfloat16), lengths=(110, 31, 17, 1))
    return torch.cat(list(_all_logits(bench)))


def _all_logits(bench: Bench) -> Iterator[Tensor]:
    for state in bench.states:
        yield bench.passes.all_logits(Work(state=state, start=0, length=len(state.tokens), emits=True))
