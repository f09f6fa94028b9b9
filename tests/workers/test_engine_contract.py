"""The engine keeps the executor's contract, with torch doing the work."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.workers.engine_support import Options
from tests.workers.executor_contract import ExecutorContract
from tests.workers.tiny_models import CONFIGS, save_tiny_model
from workers.engine import Engine
from workers.executor import Executor
from workers.loading import load_engine

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    folder = save_tiny_model(tmp_path_factory.mktemp("model"), CONFIGS["llama"])
    return load_engine(Options(model=str(folder), max_slots=4, kv_blocks=64, swap_mib=1, threads=1), lambda _: None)


class TestEngine(ExecutorContract):
    @pytest.fixture
    def executor(self, engine: Engine) -> Iterator[Executor]:
        """One engine for all tests: loading it is the slow part."""
        yield engine
        engine.reset()
