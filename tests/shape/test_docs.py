"""The documents say what is there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.cli import HELP
from gateway.settings import GatewaySettings, UpSettings
from gateway.settings_sources import CommandSettings, flag_of
from gateway.welcome import curl_line
from workers.settings import WorkerSettings

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
COMMANDS = set(re.findall(r"^  (\w+) +\w", HELP, flags=re.MULTILINE))
OTHER_FLAGS = {"--out", "--set", "--cost", "--compare", "--arrivals", "--objective", "--help", "--version"}

LOG_FLAGS = {"--html", "--perfetto", "--json"}


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_link_leads_somewhere(page: Path) -> None:
    """A map with missing places is worse than none."""
    targets = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text())
    assert [target for target in targets if not (page.parent / target).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_make_target_and_command_in_code_exists(page: Path) -> None:
    """The first thing that a reader does is to paste one."""
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    code = "\n".join(re.findall(r"```.*?```|`[^`\n]+`", page.read_text(), flags=re.DOTALL))
    assert set(re.findall(r"\bmake ([a-z]+)", code)) <= targets
    assert set(re.findall(r"\bsluicegate ([a-z]+)", code)) <= COMMANDS


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_flag_in_code_exists(page: Path) -> None:
    """A renamed setting must not live on in a document, where it would be pasted into an error."""
    known = {flag_of(field) for settings in all_settings() for field in settings.model_fields} | OTHER_FLAGS | LOG_FLAGS
    commands = re.findall(r"(?:sluicegate|make run)\b[^\n`]*", page.read_text())
    alone = re.findall(r"`(--[a-z][a-z-]+)", page.read_text())
    assert {flag for text in (*commands, *alone) for flag in re.findall(r"(?<!\w)--[a-z][a-z-]+", text)} <= known


@pytest.mark.parametrize("maker", ["settings_table.py", "api_reference.py"])
def test_what_is_made_from_the_code_is_up_to_date(maker: str) -> None:
    """Nobody should have to remember to make it again."""
    command = [sys.executable, str(ROOT / "docs" / maker), "--check"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, cwd=ROOT, env=environment)
    assert result.returncode == 0, result.stderr


def test_the_readme_shows_the_line_that_up_prints() -> None:
    """Its first screen promises exactly this."""
    assert curl_line("http://127.0.0.1:8080", "smollm2-135m-instruct") in (ROOT / "README.md").read_text()


def all_settings() -> tuple[type[CommandSettings | WorkerSettings], ...]:
    return GatewaySettings, UpSettings, WorkerSettings
