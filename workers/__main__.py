"""``python -m workers``, also ``sluicegate worker``: one worker process, from settings to the last log line."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence

import structlog

from workers.errors import LoadError
from workers.executor import Executor
from workers.lifetime import Stopped, die_with_parent, stop_on_signals
from workers.listener import ListenError, listen, stop_listening
from workers.logs import configure_logs
from workers.server import Server
from workers.settings import BadSettings, WorkerSettings

FAILED = 1
USAGE_ERROR = 2

_IN_SCRIPT = {
    "served_model_name": "model",
    "max_model_len": "context_length",
    "max_slots": "slots",
    "kv_blocks": "blocks",
    "block_size": "block_size",
}


class CannotLoad(Exception):
    """There is nothing to serve; the text is one sentence."""


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until a signal says stop. The exit code: 0 stopped, 1 could not serve, 2 wrong settings."""
    try:
        stop_on_signals()
        die_with_parent()
        settings = WorkerSettings.load(sys.argv[1:] if argv is None else argv)
        secret = settings.read_secret()
        configure_logs(settings.log_format, worker_id=settings.worker_id)
        _serve(settings, secret)
    except BadSettings as error:
        return _complain(error, USAGE_ERROR)
    except (CannotLoad, ListenError) as error:
        return _complain(error, FAILED)
    except Stopped:
        pass
    return 0


def _serve(settings: WorkerSettings, secret: bytes) -> None:
    log = structlog.get_logger(__name__)
    executor = _load(settings, lambda stage: log.info("loading", stage=stage))
    listener = listen(settings.address)
    try:
        server = Server(executor, listener=listener, worker_id=settings.worker_id, secret=secret)
        log.info(
            "ready",
            listen=str(settings.address),
            model=executor.card.name,
            slots=executor.max_slots,
            kv_blocks=executor.kv_blocks,
        )
        server.run()
    finally:
        stop_listening(listener, settings.address)


def _load(settings: WorkerSettings, progress: Callable[[str], None]) -> Executor:
    if settings.fake_worker is not None:
        return _load_fake(settings, settings.fake_worker, progress)
    from workers.loading import load_engine  # noqa: PLC0415 -- torch takes seconds, the rest needs none of it

    try:
        return load_engine(settings, progress)
    except LoadError as error:
        raise CannotLoad(str(error)) from None


def _load_fake(settings: WorkerSettings, source: str, progress: Callable[[str], None]) -> Executor:
    from workers.fake import FakeExecutor  # noqa: PLC0415 -- its tokenizer is not needed beside a model
    from workers.fake_script import ScriptError, read_script  # noqa: PLC0415 -- see above

    try:
        script = read_script(source).model_copy(update=_overrides(settings))
        executor = FakeExecutor(script)
    except ScriptError as error:
        raise CannotLoad(str(error)) from None
    progress("playing a script instead of a model")
    time.sleep(script.delays.load_s)
    return executor


def _overrides(settings: WorkerSettings) -> dict[str, object]:
    """What an operator set by name counts for a script as it does for a model."""
    return {
        in_script: getattr(settings, field)
        for field, in_script in _IN_SCRIPT.items()
        if field in settings.model_fields_set and getattr(settings, field) is not None
    }


def _complain(error: Exception, code: int) -> int:
    sys.stderr.write("".join(f"sluicegate worker: {line}\n" for line in str(error).splitlines()))
    return code


if __name__ == "__main__":
    sys.exit(main())
