"""Structured logs on stderr: JSON lines, or readable ones on a terminal."""

from __future__ import annotations

import logging
import sys
from typing import Literal, TextIO

import structlog
from structlog.typing import Processor

LogFormat = Literal["auto", "json", "console"]

_SHARED: tuple[Processor, ...] = (
    structlog.contextvars.merge_contextvars,
    structlog.processors.add_log_level,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
)


def configure_logs(log_format: LogFormat, *, worker_id: str, stream: TextIO = sys.stderr) -> None:
    """Send this process's records, and those of libraries that use ``logging``, to ``stream``. Repeatable."""

    def name_worker(_logger: object, _method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
        event.setdefault("worker", worker_id)
        return event

    structlog.configure(
        processors=[*_SHARED, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=list(_SHARED),
            processors=[
                name_worker,
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                *_rendering(log_format, stream),
            ],
        )
    )
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)


def _rendering(log_format: LogFormat, stream: TextIO) -> tuple[Processor, ...]:
    if log_format == "console" or (log_format == "auto" and stream.isatty()):
        return (structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback),)
    # Without local variables: they hold prompts.
    tracebacks = structlog.tracebacks.ExceptionDictTransformer(show_locals=False)
    return (structlog.processors.ExceptionRenderer(tracebacks), structlog.processors.JSONRenderer())
