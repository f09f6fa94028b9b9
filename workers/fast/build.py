"""The kernels in C++, compiled for this very machine when a worker first needs them, and kept beside converted models.

They have a plain C interface and include nothing of torch's, so compiling takes seconds and any torch will do. The
compiler is the first on the PATH, else the one in the Python package ``ziglang``, if that is installed. Where there is
none, or one that makes something else of this, ``CannotBuild`` says so.

``python -m workers.fast.build`` compiles them ahead of the first start.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

from workers.weights import Progress, default_cache, say

SOURCES = Path(__file__).parent / "native"
MAIN = "kernels.cpp"
COMPILERS = ("g++", "c++", "clang++")
PACKAGED = "ziglang"
FLAGS = (
    "-std=c++20",
    "-O3",
    "-march=native",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-Wno-psabi",
    "-pthread",
    "-fPIC",
    "-shared",
)
COMPILE_TIMEOUT_S = 300
"""It takes 2 to 10 s, and a minute where a compiler makes its C++ library first, as the packaged one does once; a
machine so busy that it takes this long had better start without.
"""


class CannotBuild(Exception):
    """There will be no kernels here; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiler:
    """``command`` takes flags and sources as g++ does; what ``version`` prints tells it from others of its name."""

    command: tuple[str, ...]
    version: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return " ".join(self.command)


def find_compiler(cache: Path) -> Compiler | None:
    """The compiler of this machine, if it has one. What it keeps for its next run it keeps in ``cache``."""
    for name in COMPILERS:
        if found := shutil.which(name):
            return Compiler(command=(found,), version=(found, "--version"))
    if find_spec(PACKAGED) is None:
        return None
    zig = (sys.executable, "-m", PACKAGED)
    environment = {"ZIG_GLOBAL_CACHE_DIR": str(cache.absolute() / PACKAGED)}
    return Compiler(command=(*zig, "c++"), version=(*zig, "version"), environment=environment)


def load_library(cache: Path, progress: Progress = lambda _: None) -> ctypes.CDLL:
    """The compiled kernels, built now unless ``cache`` has them. Raises ``CannotBuild``."""
    compiler = find_compiler(cache)
    if compiler is None:
        raise CannotBuild(
            f"there is no C++ compiler ({', '.join(COMPILERS)} on the PATH, or the Python package {PACKAGED})"
        )
    try:
        target = cache / "kernels" / f"{_digest(compiler)}.so"
        if not target.is_file():
            progress(f"Compiling kernels for this machine, once, with {compiler.name}")
            _compile(compiler, target)
        return ctypes.CDLL(str(target))
    except (OSError, subprocess.SubprocessError) as error:
        raise CannotBuild(f"{compiler.name} is of no use here: {_reason(error)}") from error


def main() -> int:
    """Compile into the default cache."""
    try:
        load_library(default_cache(), lambda line: say(sys.stderr, line))
    except CannotBuild as error:
        say(sys.stderr, f"No kernels: {error}")
        return 1
    return 0


def _digest(compiler: Compiler) -> str:
    """Of all that decides what comes out: sources, flags, compiler and processor."""
    digest = hashlib.sha256()
    for path in sorted(SOURCES.iterdir()):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    version = _run(compiler.version, compiler.environment)
    digest.update(repr((compiler.command, version, FLAGS, platform.machine(), _processor())).encode())
    return digest.hexdigest()[:16]


def _processor() -> str:
    """What this processor can do, as Linux lists it; a cache may be shared by different machines."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line for line in lines if line.startswith(("flags", "Features"))), platform.processor())


def _compile(compiler: Compiler, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=target.parent) as scratch:
        made = Path(scratch) / target.name
        _run((*compiler.command, *FLAGS, str(SOURCES / MAIN), "-o", str(made)), compiler.environment)
        made.replace(target)  # at once: another worker may build the same


def _run(command: Sequence[str], environment: Mapping[str, str]) -> bytes:
    done = subprocess.run(  # noqa: S603 -- a compiler from the PATH, or of this very Python
        command, env={**os.environ, **environment}, capture_output=True, check=True, timeout=COMPILE_TIMEOUT_S
    )
    return done.stdout


def _reason(error: Exception) -> str:
    if isinstance(error, subprocess.CalledProcessError):
        lines = error.stderr.decode(errors="replace").strip().splitlines()
        lines = [line for line in lines if "error" in line] or lines
        return lines[0] if lines else f"it ends with {error.returncode}"
    return str(error).strip().partition("\n")[0]


if __name__ == "__main__":
    sys.exit(main())
