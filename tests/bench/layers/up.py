"""``python -m tests.bench.layers.up FOLDER --flag VALUE ...``: `sluicegate up`, its children under stopwatches.

What these show lies in FOLDER when it has ended.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace

from gateway import fleet
from gateway.cli import main as sluicegate
from gateway.process import ChildSpec
from tests.bench.layers.marks import FOLDER


def main() -> None:
    folder, *flags = sys.argv[1:]
    for name in ("worker_spec", "gateway_spec"):
        setattr(fleet, name, _under_stopwatches(getattr(fleet, name), folder))
    sys.exit(sluicegate(["up", *flags]))


def _under_stopwatches(spec_of: Callable[..., ChildSpec], folder: str) -> Callable[..., ChildSpec]:
    def make(*arguments: object) -> ChildSpec:
        spec = spec_of(*arguments)
        python, module, *command = spec.argv
        argv = (python, module, "tests.bench.layers.child", *command)
        return replace(spec, argv=argv, env={**spec.env, FOLDER: folder})

    return make


if __name__ == "__main__":
    main()
