"""Thousands of requests made from the API's own description, good and bad ones: none may find a fault or a lie.

Each answer is held against the description: its status, type, headers and body. Bodies that the schema forbids must be
refused. (The reverse is not asked: rules between fields are beyond JSON Schema.) Every route must want its key.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import sys
from asyncio.subprocess import PIPE, STDOUT
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.system.cluster import Cluster, script, start_cluster

pytestmark = [pytest.mark.system, pytest.mark.timeout(1800)]

KEY = "sk-for-tests"
NUM_EXAMPLES = 600  # of each operation that takes anything
WORDS = script(output={"kind": "words", "end_after": 4}, context_length=64, slots=16)
CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "negative_data_rejection",
    "missing_required_header",
    "unsupported_method",
    "ignored_auth",
)


@pytest.fixture
async def locked(tmp_path: Path) -> AsyncIterator[Cluster]:
    """A gateway with a key, whose answers are short, however much is asked for."""
    keys = tmp_path / "keys.toml"
    keys.write_text(f'[tests]\nsha256 = "{hashlib.sha256(KEY.encode()).hexdigest()}"\ntenant = "tests"\n')
    async with start_cluster(tmp_path, "--fake-worker", WORDS, "--api-keys", str(keys)) as cluster:
        yield cluster


async def test_nothing_that_the_description_allows_or_forbids_finds_a_fault(
    locked: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No 5xx, no answer that the description does not know, no bad body that passes."""
    description = tmp_path / "openapi.json"
    description.write_text(json.dumps(within_reach(await served(locked))))
    command = [sys.executable, "-m", "schemathesis.cli", "run", str(description), "--url", locked.addresses[0]]
    options = {
        "--header": f"Authorization: Bearer {KEY}",
        "--checks": ",".join(CHECKS),
        "--phases": "fuzzing",
        "--max-examples": str(NUM_EXAMPLES),
        "--seed": "1",
        "--workers": "2",
        "--suppress-health-check": "all",
        "--generation-database": "none",
        "--request-timeout": "60",
    }
    words = [word for option in options.items() for word in option]
    process = await asyncio.create_subprocess_exec(
        *command, *words, "--no-shrink", "--no-color", cwd=tmp_path, stdout=PIPE, stderr=STDOUT
    )
    output, _ = await process.communicate()
    told = output.decode()
    assert process.returncode == 0, told[-6000:]
    with capsys.disabled():
        print("\n" + told[told.index("Test cases:") :])


async def served(cluster: Cluster) -> dict[str, Any]:
    headers = {"Authorization": f"Bearer {KEY}"}
    async with (
        aiohttp.ClientSession(headers=headers) as session,
        session.get(f"{cluster.addresses[0]}/openapi.json") as response,
    ):
        return dict(await response.json())


def within_reach(description: dict[str, Any]) -> dict[str, Any]:
    """The description with the one model that is served, so that requests get past its name, and without deadlines.

    (A 504 is the right answer to one of a millisecond.)
    """
    for schema in description["components"]["schemas"].values():
        fields = schema.get("properties", {})
        fields.pop("deadline_ms", None)
        if schema.get("additionalProperties") is False and "model" in schema.get("required", ()) and "id" not in fields:
            fields["model"] = {"enum": ["fake"]}
    for operations in description["paths"].values():
        for operation in operations.values():
            operation["parameters"] = [p for p in operation["parameters"] if p["name"] != "x-request-deadline-ms"]
    return description
