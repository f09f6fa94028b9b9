"""Logs: one JSON object per line where nobody watches."""

from __future__ import annotations

import io
import json
import logging

import structlog

from gateway.logs import configure_logs


def test_each_record_is_one_json_line_that_names_its_process() -> None:
    """Several processes write to one stream; a collector must tell them apart."""
    stream = io.StringIO()
    configure_logs("gateway 0", stream)

    structlog.get_logger("gateway.driver").info("worker_joined", slots=8)

    record = json.loads(stream.getvalue())
    assert record["event"] == "worker_joined"
    assert (record["process"], record["level"], record["slots"]) == ("gateway 0", "info", 8)


def test_records_of_libraries_look_alike_and_tracebacks_stay_on_their_line() -> None:
    """A traceback spread over lines cannot be searched or counted."""
    stream = io.StringIO()
    configure_logs("gateway 0", stream)

    try:
        raise ValueError("no such thing")
    except ValueError:
        logging.getLogger("aiohttp.server").exception("request failed")

    (line,) = stream.getvalue().splitlines()
    record = json.loads(line)
    assert record["event"] == "request failed"
    assert record["exception"][0]["exc_type"] == "ValueError"


def test_a_traceback_shows_no_local_variables() -> None:
    """They hold prompts and answers, which belong to nobody who reads logs."""
    stream = io.StringIO()
    configure_logs("gateway 0", stream)

    def fail(prompt: str) -> None:
        raise ValueError(len(prompt))

    try:
        fail("my secret")
    except ValueError:
        logging.getLogger("gateway").exception("request failed")

    assert "my secret" not in stream.getvalue()
