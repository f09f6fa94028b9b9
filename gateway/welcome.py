"""What `sluicegate up` says when it serves: where, and a command to try."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence

QUESTION = "Why is the sky blue?"


KEY_HEADER = "Authorization: Bearer YOUR-KEY"
"""What the command needs where there are API keys, of which nobody here knows one."""


def welcome(addresses: Sequence[str], model: str, elapsed_s: float, headers: Sequence[str] = ()) -> str:
    lines = [f"\nServing {model} after {elapsed_s:.1f} s at " + ", ".join(f"{address}/v1" for address in addresses)]
    lines += ["", "Try:", "", f"  {curl_line(addresses[0], model, headers)}", "", "Ctrl-C stops it."]
    return "\n".join(lines)


def curl_line(address: str, model: str, headers: Sequence[str] = ()) -> str:
    """A shell command that streams an answer. Greedy: a small model that is left to chance soon loses the thread."""
    messages = [{"role": "user", "content": QUESTION}]
    body = {"model": model, "stream": True, "temperature": 0, "messages": messages}
    url = f"{address}/v1/chat/completions"
    words = ["curl", "-N", url]
    for header in ("Content-Type: application/json", *headers):
        words += ["-H", header]
    return shlex.join([*words, "-d", json.dumps(body)])
