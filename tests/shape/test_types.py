"""The types of the engine, against torch itself: `make check` looks past it, to be quick and to need none of it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.torch

ROOT = Path(__file__).parents[2]

SETTINGS = """\
[mypy]
python_version = 3.11
strict = True
packages = workers

[mypy-msgpack.*,transformers.*,gguf.*,accelerate.*]
ignore_missing_imports = True
"""


@pytest.mark.timeout(300)  # reading torch takes half a minute on an idle machine
def test_the_workers_are_strictly_typed_against_torch(tmp_path: Path) -> None:
    """A wrong shape of a call into torch is found here, not in the first batch that takes that path."""
    settings = tmp_path / "mypy.ini"
    settings.write_text(SETTINGS)
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--config-file",
        str(settings),
        "--cache-dir",
        str(ROOT / ".mypy_cache/torch"),
    ]
    result = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False, cwd=ROOT)
    assert result.returncode == 0, result.stdout + result.stderr
