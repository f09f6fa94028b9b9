"""What `sluicegate up` says when it serves: where, and a command to try."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence

QUESTION = "Why is the sky blue?"


def welcome(addresses: Sequence[str], model: str, elapsed_s: float) -> str:
    lines = [f"\nServing {model} after {elapsed_s:.1f} s at " + ", ".join(f"{address}/v1" for address in addresses)]
    lines += ["", "Try:", "", f"  {curl_line(addresses[0], model)}", "", "Ctrl-C stops it."]
    return "\n".join(lines)


def curl_line(address: str, model: str) -> str:
    """A shell command that streams an answer. Greedy: a small model that is left to chance soon loses the thread."""
    messages = [{"role": "user", "content": QUESTION}]
    body = {"model": model, "stream": True, "temperature": 0, "messages": messages}
    url = f"{address}/v1/chat/completions"
    return shlex.join(["curl", "-N", url, "-H", "Content-Type: application/json", "-d", json.dumps(body)])
