"""Compiling the kernels: once per machine, and no harm where that cannot be done."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from workers.fast import build
from workers.fast.build import PACKAGED, CannotBuild, Compiler, find_compiler, load_library

PACKAGE = """
import os, sys
if sys.argv[1:] == ["version"]:
    print(os.environ.get("VERSION_OF_THE_TEST", "1"))
else:
    assert sys.argv[1] == "c++" and os.environ["ZIG_GLOBAL_CACHE_DIR"]
    os.execv({real!r}, [{real!r}, *sys.argv[2:]])
"""


def real_compiler() -> str:
    found = shutil.which("g++")
    if found is None:
        pytest.fail("these tests need g++ (on Debian: apt install g++)")
    return found


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A Python package that compiles as the real one does, and nothing on the PATH; the compiler behind it."""
    real = real_compiler()
    folder = tmp_path / "site" / PACKAGED
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("")
    (folder / "__main__.py").write_text(PACKAGE.format(real=real))
    monkeypatch.syspath_prepend(folder.parent)
    monkeypatch.setenv("PYTHONPATH", str(folder.parent))
    monkeypatch.setenv("PATH", str(tmp_path))
    return real


@pytest.mark.system
def test_the_kernels_are_compiled_once_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second start of a worker costs no compiling, even where there is no compiler that works any more."""
    real_compiler()
    lines: list[str] = []
    assert load_library(tmp_path, lines.append).lanes() == 16
    assert len(lines) == 1
    (kept,) = (tmp_path / "kernels").iterdir()
    assert kept.suffix == ".so"
    monkeypatch.setattr(build, "_compile", lambda *_: pytest.fail("compiled again"))
    load_library(tmp_path, lines.append)
    assert len(lines) == 1


def test_other_sources_are_other_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache outlives an upgrade."""
    compiler = Compiler(command=(real_compiler(),), version=(real_compiler(), "--version"))
    before = build._digest(compiler)
    changed = shutil.copytree(build.SOURCES, tmp_path / "native")
    (changed / build.MAIN).write_text("// something else")
    monkeypatch.setattr(build, "SOURCES", changed)
    assert build._digest(compiler) != before


def test_where_none_is_on_the_path_the_packaged_compiler_is_taken(
    tmp_path: Path, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A laptop without a compiler gets one from pip; what is on the PATH compiles faster and comes first."""
    linker = Path(package).parent
    monkeypatch.setenv("COMPILER_PATH", str(linker))  # the one behind it finds its own parts without a PATH
    assert load_library(tmp_path / "cache").lanes() == 16
    monkeypatch.setenv("PATH", str(linker))
    compiler = find_compiler(tmp_path)
    assert compiler is not None
    assert PACKAGED not in compiler.name


@pytest.mark.usefixtures("package")
def test_another_version_of_the_package_makes_other_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the compiler in it calls itself does not change with every release."""
    compiler = find_compiler(tmp_path)
    assert compiler is not None
    before = build._digest(compiler)
    monkeypatch.setenv("VERSION_OF_THE_TEST", "2")
    assert build._digest(compiler) != before


def test_without_a_compiler_there_are_no_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slim images have none: the worker says so and computes in torch alone."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(build, "PACKAGED", "no_such_package")
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
