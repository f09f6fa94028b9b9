"""The `sluicegate` command: `up`, `gateway`, `worker`, `simulate` and those that read logs.

Nothing heavy is imported before the command is known: `sluicegate worker` must become a process without aiohttp and
redis, and `sluicegate gateway` one without torch.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import NoReturn

USAGE_ERROR = 2

HELP = """\
usage: sluicegate COMMAND [--flag VALUE ...]

  up         serve a model on this machine: Redis, workers and gateways together
  gateway    one gateway alone: HTTP in front, workers and a Redis behind
  worker     one worker alone: one model, executing the plans of a gateway
  simulate   run a scenario or an arrival trace through the scheduler
  replay     decide what was recorded again, or tell what would have happened
  fit        fit what an iteration costs to recorded logs
  explain    tell what happened to one request, from recorded logs
  trace      draw what was recorded, as a page or for Perfetto

`sluicegate COMMAND --help` explains a command's settings: flags, SLUICEGATE_*
variables or a TOML file (--config).
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and give its exit code: 0, 1 when it failed, 2 when it was called wrongly."""
    words = list(sys.argv[1:] if argv is None else argv)
    if not words or words[0] in {"-h", "--help", "help"}:
        sys.stdout.write(HELP)
        return 0
    if words[0] == "--version":
        sys.stdout.write(f"sluicegate {version('sluicegate')}\n")
        return 0
    command = _COMMANDS.get(words[0])
    if command is None:
        sys.stderr.write(f"sluicegate: unknown command {words[0]!r}; known are {', '.join(_COMMANDS)}\n")
        return USAGE_ERROR
    return command(words[1:])


def _up(argv: Sequence[str]) -> int:
    from gateway.settings import UpSettings  # noqa: PLC0415 (only this command needs it)
    from gateway.settings_sources import BadSettings  # noqa: PLC0415

    try:
        settings = UpSettings.load(argv)
    except BadSettings as error:
        return _refuse("up", error.lines)
    from gateway.up import run_up  # noqa: PLC0415

    return run_up(settings)


def _gateway(argv: Sequence[str]) -> int:
    from gateway.settings import GatewaySettings  # noqa: PLC0415 (only this command needs it)
    from gateway.settings_sources import BadSettings  # noqa: PLC0415

    try:
        settings = GatewaySettings.load(argv)
    except BadSettings as error:
        return _refuse("gateway", error.lines)
    import uvloop  # noqa: PLC0415

    from gateway.collector import relieve_collector  # noqa: PLC0415
    from gateway.logs import configure_logs  # noqa: PLC0415
    from gateway.serve import serve  # noqa: PLC0415

    configure_logs(f"gateway {settings.gateway_id}")
    relieve_collector()
    uvloop.run(serve(settings))
    return 0


def _worker(argv: Sequence[str]) -> NoReturn:
    """Become the worker: a new program in this process, so that nothing of a gateway is ever loaded in it."""
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-m", "workers", *argv])  # noqa: S606 (the interpreter that runs us)


def _simulate(argv: Sequence[str]) -> int:
    from gateway.simulate_command import simulate_main  # noqa: PLC0415 (only this command needs it)

    return simulate_main(argv)


def _replay(argv: Sequence[str]) -> int:
    from gateway.replay_command import replay_main  # noqa: PLC0415 (only this command needs it)

    return replay_main(argv)


def _fit(argv: Sequence[str]) -> int:
    from gateway.fit_command import fit_main  # noqa: PLC0415 (only this command needs it)

    return fit_main(argv)


def _explain(argv: Sequence[str]) -> int:
    from gateway.explain_command import explain_main  # noqa: PLC0415 (only this command needs it)

    return explain_main(argv)


def _trace(argv: Sequence[str]) -> int:
    from gateway.trace_command import trace_main  # noqa: PLC0415 (only this command needs it)

    return trace_main(argv)


def _refuse(command: str, lines: Sequence[str]) -> int:
    for line in lines:
        sys.stderr.write(f"sluicegate {command}: {line}\n")
    return USAGE_ERROR


_COMMANDS: dict[str, Callable[[Sequence[str]], int]] = {
    "up": _up,
    "gateway": _gateway,
    "worker": _worker,
    "simulate": _simulate,
    "replay": _replay,
    "fit": _fit,
    "explain": _explain,
    "trace": _trace,
}
