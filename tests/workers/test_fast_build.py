"""Compiling the kernels: once per machine, and no harm where that cannot be done."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from workers.fast import build
from workers.fast.build import CannotBuild, load_library


@pytest.mark.system
def test_the_kernels_are_compiled_once_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second start of a worker costs no compiling, even where there is no compiler that works any more."""
    if shutil.which("g++") is None:
        pytest.fail("these tests need g++ (on Debian: apt install g++)")
    assert load_library(tmp_path).lanes() == 16
    (kept,) = (tmp_path / "kernels").iterdir()
    assert kept.suffix == ".so"
    monkeypatch.setattr(build, "_compile", lambda *_: pytest.fail("compiled again"))
    load_library(tmp_path)


def test_other_sources_are_other_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache outlives an upgrade."""
    compiler = shutil.which("g++")
    assert compiler is not None
    before = build._digest(compiler)
    changed = shutil.copytree(build.SOURCES, tmp_path / "native")
    (changed / build.MAIN).write_text("// something else")
    monkeypatch.setattr(build, "SOURCES", changed)
    assert build._digest(compiler) != before


def test_without_a_compiler_there_are_no_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slim images have none: the worker says so and computes as transformers does."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CannotBuild, match=r"no C\+\+ compiler"):
        load_library(tmp_path)


def test_a_compiler_that_fails_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An old one may not know the language; nothing half made is left behind."""
    compiler = tmp_path / "bin" / "g++"
    compiler.parent.mkdir()
    compiler.write_text('#!/bin/sh\n[ "$1" = --version ] || { echo "g++: error: of no use" >&2; exit 1; }\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("PATH", str(compiler.parent))
    with pytest.raises(CannotBuild, match="error: of no use"):
        load_library(tmp_path)
    assert list((tmp_path / "kernels").iterdir()) == []
