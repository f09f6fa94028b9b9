"""Servers for the clients to talk to: scripted ones, where the words or the load matter, and the real model."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.system.cluster import Cluster, script, start_cluster

LOAD_WITHIN_S = 200.0  # the first load converts the model

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else it asks the network for prices when it is imported
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_DATASETS_OFFLINE"] = "1"

ECHO = script(output={"kind": "echo", "end_after": 16}, slots=16)
SLOW = script(output={"kind": "echo"}, delays={"base_us": 20_000})


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def echo(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Cluster]:
    """Says a prompt's own tokens, sixteen of them."""
    async with start_cluster(tmp_path_factory.mktemp("echo"), "--fake-worker", ECHO) as cluster:
        yield cluster


@pytest_asyncio.fixture(loop_scope="session")
async def crowded(tmp_path: Path) -> AsyncIterator[Cluster]:
    """One slot, one place in the queue, 20 ms a token."""
    flags = ("--fake-worker", SLOW, "--max-slots", "1", "--queue-requests", "1")
    async with start_cluster(tmp_path, *flags) as cluster:
        yield cluster


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def real(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Cluster]:
    """The default model, in numbers that do not depend on the batch."""
    numbers = ("--dtype", "float32", "--device", "cpu", "--threads", "1")
    flags = (*numbers, "--token-budget", "512", "--prefill-chunk", "512")
    async with start_cluster(tmp_path_factory.mktemp("real"), *flags, start_within_s=LOAD_WITHIN_S) as cluster:
        yield cluster
