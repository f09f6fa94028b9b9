"""What a worker writes to its log."""

from __future__ import annotations

import io
import json

import structlog

from workers.logs import configure_logs


def test_a_traceback_in_the_log_holds_no_local_variables() -> None:
    """They hold prompts."""
    stream = io.StringIO()
    configure_logs("json", worker_id="w", stream=stream)
    prompt = "a secret prompt"
    try:
        assert not prompt
    except AssertionError:
        structlog.get_logger("test").exception("iteration_failed", step=3)
    record = json.loads(stream.getvalue())
    assert (record["event"], record["worker"], record["step"]) == ("iteration_failed", "w", 3)
    assert record["exception"][0]["exc_type"] == "AssertionError"
    assert "secret" not in json.dumps(record["exception"][0]["frames"])
