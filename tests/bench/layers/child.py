"""``python -m tests.bench.layers.child workers ...`` (or ``gateway ...``): the usual program, under stopwatches.

What they show is written to a file of the program's name, in the folder that the environment names, when it ends.
"""

from __future__ import annotations

import os
import runpy
import sys
from contextlib import AbstractContextManager
from pathlib import Path

from tests.bench.layers.marks import FOLDER, Marks


def main() -> None:
    program, *argv = sys.argv[1:]
    marks = Marks()
    sys.argv = [program, *argv]
    with _stopwatches(program, argv, marks):
        try:
            runpy.run_module(program, run_name="__main__", alter_sys=True)
        finally:
            marks.write(Path(os.environ[FOLDER]) / f"{program}.json")


def _stopwatches(program: str, argv: list[str], marks: Marks) -> AbstractContextManager[None]:
    """Those of the program, imported here: neither process becomes one that has loaded the other's room."""
    if program == "workers":
        from tests.bench.layers.of_worker import worker_marks  # noqa: PLC0415 -- see above

        return worker_marks(argv, marks)
    from tests.bench.layers.of_gateway import gateway_marks  # noqa: PLC0415 -- see above

    return gateway_marks(marks)


if __name__ == "__main__":
    main()
