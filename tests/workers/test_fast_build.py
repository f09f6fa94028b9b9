"""Compiling the kernels: once per machine, and no harm where that cannot be done."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from workers.fast import build
from workers.fast.build import PACKAGED, CannotBuild, Compiler, find_compilers, load_library

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
def test_the_kernels_are_compiled_once_and_kept(tmp_path: Path) -> None:
    """The second start of a worker costs no compiling."""
    real_compiler()
    lines: list[str] = []
    assert load_library(tmp_path, lines.append).lanes() == 16
    assert len(lines) == 1
    (kept,) = (tmp_path / "kernels").iterdir()
    assert kept.suffix == ".so"
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
    assert PACKAGED not in next(find_compilers(tmp_path)).name


@pytest.mark.usefixtures("package")
def test_another_version_of_the_package_makes_other_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the compiler in it calls itself does not change with every release."""
    (compiler,) = find_compilers(tmp_path)
    before = build._digest(compiler)
    monkeypatch.setenv("VERSION_OF_THE_TEST", "2")
    assert build._digest(compiler) != before


def test_without_a_compiler_there_are_no_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slim images have none: the worker says so and computes in torch alone."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(build, "PACKAGED", "no_such_package")
    with pytest.raises(CannotBuild, match=r"no C\+\+ compiler"):
        load_library(tmp_path)


BROKEN = {
    'echo "g++: error: of no use" >&2; exit 1': "g\\+\\+: error: of no use",
    "echo garbage": "reports no error and makes no file",
    'for made; do :; done; echo garbage > "$made"': "invalid ELF header|file too short",
    "exec sleep 30": "timed out",
}


@pytest.mark.parametrize("does", BROKEN)
def test_a_compiler_that_is_of_no_use_is_quoted(does: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An old one may not know the language; nothing half made is left behind."""
    monkeypatch.setattr(build, "COMPILE_TIMEOUT_S", 0.5)
    monkeypatch.setattr(build, "PACKAGED", "no_such_package")
    monkeypatch.setenv("PATH", f"{broken_compiler(tmp_path, does)}:/usr/bin:/bin")
    monkeypatch.setattr(build, "COMPILERS", ("g++",))
    with pytest.raises(CannotBuild, match=BROKEN[does]):
        load_library(tmp_path)
    assert list((tmp_path / "kernels").iterdir()) == []


def test_a_compiler_that_hangs_when_asked_for_its_version_does_not_hold_a_start_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is asked at every start, also where kernels are kept."""
    monkeypatch.setattr(build, "VERSION_TIMEOUT_S", 0.1)
    monkeypatch.setattr(build, "COMPILERS", ("g++",))
    monkeypatch.setattr(build, "PACKAGED", "no_such_package")
    compiler = broken_compiler(tmp_path, "") / "g++"
    compiler.write_text("#!/bin/sh\nexec sleep 30\n")
    monkeypatch.setenv("PATH", f"{compiler.parent}:/usr/bin:/bin")
    with pytest.raises(CannotBuild, match="timed out"):
        load_library(tmp_path)


@pytest.mark.system
def test_where_the_first_compiler_is_of_no_use_the_next_is_tried(
    tmp_path: Path, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who has an old g++ and installs the package, as told, gets kernels."""
    monkeypatch.setenv("COMPILER_PATH", str(Path(package).parent))
    monkeypatch.setenv("PATH", str(broken_compiler(tmp_path, "exit 1")))
    lines: list[str] = []
    assert load_library(tmp_path / "cache", lines.append).lanes() == 16
    assert [PACKAGED in line for line in lines] == [False, True]


@pytest.mark.system
@pytest.mark.parametrize("left", [0, 20000])
def test_kernels_that_were_cut_short_are_made_anew(left: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading such a file can end the process, and it would at every start."""
    real_compiler()
    monkeypatch.setattr(build, "FLAGS", (*build.FLAGS, "-O0"))  # compiles sooner
    load_library(tmp_path)
    (kept,) = (tmp_path / "kernels").iterdir()
    whole = kept.read_bytes()
    kept.unlink()  # this very process has it loaded
    kept.write_bytes(whole[:left])
    lines: list[str] = []
    assert load_library(tmp_path, lines.append).lanes() == 16
    assert len(lines) == 1
    assert [len(one.read_bytes()) for one in (tmp_path / "kernels").iterdir()] == [len(whole)]


@pytest.mark.system
def test_a_cache_that_takes_no_files_costs_a_compilation_and_no_kernels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A volume of converted models may be mounted for reading alone."""
    real_compiler()
    monkeypatch.setattr(build, "FLAGS", (*build.FLAGS, "-O0"))
    cache = tmp_path / "cache"
    cache.write_text("not a folder")
    lines: list[str] = []
    assert load_library(cache, lines.append).lanes() == 16
    assert "cannot be kept, so the next start compiles them again" in lines[1]


def broken_compiler(folder: Path, does: str) -> Path:
    """A folder with a g++ that knows its version, and does this for everything else."""
    compiler = folder / "bin" / "g++"
    compiler.parent.mkdir()
    compiler.write_text(f'#!/bin/sh\n[ "$1" = --version ] || {{ {does}; }}\n')
    compiler.chmod(0o755)
    return compiler.parent
