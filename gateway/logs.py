"""Structured logs on stderr: JSON lines for machines, readable ones on a terminal."""

from __future__ import annotations

import logging
import sys
from typing import TextIO

import structlog
from structlog.typing import EventDict, Processor

_SHARED: tuple[Processor, ...] = (
    structlog.contextvars.merge_contextvars,
    structlog.stdlib.add_logger_name,
    structlog.stdlib.add_log_level,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
)


def configure_logs(process: str, stream: TextIO = sys.stderr) -> None:
    """Send this process's records, and those of the libraries that use ``logging``, to ``stream``.

    ``process`` names the writer in each record. Repeatable: the last call counts.
    """

    def name_process(_logger: object, _method: str, event: EventDict) -> EventDict:
        event.setdefault("process", process)
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
            processors=[name_process, structlog.stdlib.ProcessorFormatter.remove_processors_meta, *_rendering(stream)],
        )
    )
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)


def _rendering(stream: TextIO) -> list[Processor]:
    if stream.isatty():
        return [structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)]
    # Without local variables: they hold prompts.
    tracebacks = structlog.tracebacks.ExceptionDictTransformer(show_locals=False)
    return [structlog.processors.ExceptionRenderer(tracebacks), structlog.processors.JSONRenderer()]
