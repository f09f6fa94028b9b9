"""The kernels in C++, compiled for this very machine when a worker first needs them, and kept beside converted models.

They have a plain C interface and include nothing of torch's, so compiling takes seconds and any torch will do. The
compiler is the first on the PATH that compiles them (an old one may not), else the one in the Python package
``ziglang``, if that is installed. Where there is none, or none that does, ``CannotBuild`` says so.

What is kept carries the digest of its own content in its name: a file that a full disk or a lost machine left cut short
would end the process that loads it, so it is made anew. A cache that takes no files costs compiling at each start.

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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

from workers.errors import LoadError
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
VERSION_TIMEOUT_S = 30
"""Saying which it is takes a compiler no second; one that hangs must not hold a start up for long."""


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


def find_compilers(cache: Path) -> Iterator[Compiler]:
    """The compilers of this machine, best first. What one keeps for its next run it keeps in ``cache``."""
    for name in COMPILERS:
        if found := shutil.which(name):
            yield Compiler(command=(found,), version=(found, "--version"))
    if find_spec(PACKAGED) is not None:
        zig = (sys.executable, "-m", PACKAGED)
        environment = {"ZIG_GLOBAL_CACHE_DIR": str(cache.absolute() / PACKAGED)}
        yield Compiler(command=(*zig, "c++"), version=(*zig, "version"), environment=environment)


def load_library(cache: Path, progress: Progress = lambda _: None) -> ctypes.CDLL:
    """The compiled kernels, built now unless ``cache`` has them. Raises ``CannotBuild``."""
    reasons = []
    for compiler in find_compilers(cache):
        try:
            return _kept_or_built(compiler, (cache / "kernels").absolute(), progress)
        except (OSError, subprocess.SubprocessError) as error:
            reasons.append(f"{compiler.name} is of no use here: {_reason(error)}")
    raise CannotBuild(
        reasons[0]
        if reasons
        else f"there is no C++ compiler ({', '.join(COMPILERS)} on the PATH, or the Python package {PACKAGED})"
    )


def main() -> int:
    """Compile into the default cache."""
    try:
        load_library(default_cache(), lambda line: say(sys.stderr, line))
    except (CannotBuild, LoadError) as error:
        say(sys.stderr, f"No kernels: {error}")
        return 1
    return 0


def _digest(compiler: Compiler) -> str:
    """Of all that decides what comes out, and whether it loads: sources, flags, compiler, processor and C library."""
    digest = hashlib.sha256()
    for path in sorted(SOURCES.iterdir()):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    version = _run(compiler.version, compiler.environment, timeout_s=VERSION_TIMEOUT_S)
    machine = platform.machine(), platform.libc_ver(), _processor()
    digest.update(repr((compiler.command, version, FLAGS, machine)).encode())
    return digest.hexdigest()[:16]


def _processor() -> str:
    """What this processor can do, as Linux lists it; a cache may be shared by different machines."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line for line in lines if line.startswith(("flags", "Features"))), platform.processor())


def _kept_or_built(compiler: Compiler, folder: Path, progress: Progress) -> ctypes.CDLL:
    digest = _digest(compiler)
    for kept in folder.glob(f"{digest}-*.so"):
        if kept.name == _name(digest, kept):
            return ctypes.CDLL(str(kept))
    progress(f"Compiling kernels for this machine, once, with {compiler.name}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return _built(compiler, digest, folder)
    except OSError as error:  # it takes no files, or none that may be run
        progress(f"The kernels cannot be kept, so the next start compiles them again: {_reason(error)}")
    with TemporaryDirectory() as elsewhere:
        return _built(compiler, digest, Path(elsewhere))


def _built(compiler: Compiler, digest: str, folder: Path) -> ctypes.CDLL:
    with TemporaryDirectory(dir=folder) as scratch:
        made = Path(scratch) / "made.so"
        command = (*compiler.command, *FLAGS, str(SOURCES / MAIN), "-o", str(made))
        _run(command, {**compiler.environment, "TMPDIR": scratch}, timeout_s=COMPILE_TIMEOUT_S)
        if not made.is_file():
            raise subprocess.SubprocessError("it reports no error and makes no file")
        library = ctypes.CDLL(str(made))  # what does not load is not kept
        made.replace(folder / _name(digest, made))  # at once: another worker may build the same
        return library  # whatever becomes of its file


def _name(digest: str, content: Path) -> str:
    return f"{digest}-{hashlib.sha256(content.read_bytes()).hexdigest()[:16]}.so"


def _run(command: Sequence[str], environment: Mapping[str, str], *, timeout_s: float) -> bytes:
    done = subprocess.run(  # noqa: S603 -- a compiler from the PATH, or of this very Python
        command,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=True,
        timeout=timeout_s,
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
