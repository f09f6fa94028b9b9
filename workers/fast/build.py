"""The kernels in C++, compiled for this very machine when a worker first needs them, and kept beside converted models.

They have a plain C interface and include nothing of torch's, so compiling takes seconds and any torch will do. Where
there is no compiler, or one that makes something else of this, ``CannotBuild`` says so.
"""

from __future__ import annotations

import ctypes
import hashlib
import platform
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

SOURCES = Path(__file__).parent / "native"
MAIN = "kernels.cpp"
COMPILERS = ("g++", "c++", "clang++")
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
COMPILE_TIMEOUT_S = 120
"""It takes 2 to 10 s; a machine so busy that it takes this long had better start without."""


class CannotBuild(Exception):
    """There will be no kernels here; the text says why."""


def load_library(cache: Path) -> ctypes.CDLL:
    """The compiled kernels, built now unless ``cache`` has them. Raises ``CannotBuild``."""
    compiler = next((found for name in COMPILERS if (found := shutil.which(name))), None)
    if compiler is None:
        raise CannotBuild(f"there is no C++ compiler ({', '.join(COMPILERS)}) on the PATH")
    try:
        target = cache / "kernels" / f"{_digest(compiler)}.so"
        if not target.is_file():
            _compile(compiler, target)
        return ctypes.CDLL(str(target))
    except (OSError, subprocess.SubprocessError) as error:
        raise CannotBuild(f"{compiler} is of no use here: {_reason(error)}") from error


def _digest(compiler: str) -> str:
    """Of all that decides what comes out: sources, flags, compiler and processor."""
    digest = hashlib.sha256()
    for path in sorted(SOURCES.iterdir()):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    version = _run([compiler, "--version"])
    digest.update(repr((compiler, version, FLAGS, platform.machine(), _processor())).encode())
    return digest.hexdigest()[:16]


def _processor() -> str:
    """What this processor can do, as Linux lists it; a cache may be shared by different machines."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line for line in lines if line.startswith(("flags", "Features"))), platform.processor())


def _compile(compiler: str, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=target.parent) as scratch:
        made = Path(scratch) / target.name
        command = [compiler, *FLAGS, str(SOURCES / MAIN), "-o", str(made)]
        _run(command)
        made.replace(target)  # at once: another worker may build the same


def _run(command: Sequence[str]) -> bytes:
    done = subprocess.run(command, capture_output=True, check=True, timeout=COMPILE_TIMEOUT_S)  # noqa: S603 -- a compiler from the PATH
    return done.stdout


def _reason(error: Exception) -> str:
    if isinstance(error, subprocess.CalledProcessError):
        lines = error.stderr.decode(errors="replace").strip().splitlines()
        lines = [line for line in lines if "error" in line] or lines
        return lines[0] if lines else f"it ends with {error.returncode}"
    return str(error).strip().partition("\n")[0]
