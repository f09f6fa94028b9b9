"""Requests and answers of either endpoint, for tests that hold for both."""

from __future__ import annotations

from gateway.dispatch import Tokens
from tests.gateway.conftest import Reply
from tests.gateway.fakes import MODEL, FakeDispatcher

PATHS = ["/v1/chat/completions", "/v1/completions"]


def body_for(path: str, **fields: object) -> dict[str, object]:
    prompt = {"messages": [{"role": "user", "content": "Hi"}]} if "chat" in path else {"prompt": "Hi"}
    return {"model": MODEL} | prompt | fields


def text_of(reply: Reply) -> str:
    """The text of a whole answer or of a stream, of either endpoint."""
    if reply.headers["Content-Type"] == "application/json":
        (choice,) = reply.json["choices"]
        return str(choice["message"]["content"] if "message" in choice else choice["text"])
    choices = [choice for chunk in reply.chunks for choice in chunk["choices"]]
    return "".join(choice["delta"].get("content", "") if "delta" in choice else choice["text"] for choice in choices)


def texts_of(reply: Reply) -> list[str]:
    """The texts of all choices of a stream or of a whole answer, in the order of their indices."""
    chunks = [reply.json] if reply.headers["Content-Type"] == "application/json" else reply.chunks
    texts: dict[int, str] = {}
    for choice in (choice for chunk in chunks for choice in chunk["choices"]):
        part = choice["text"] if "text" in choice else choice.get("message", choice.get("delta")).get("content", "")
        texts[choice["index"]] = texts.get(choice["index"], "") + part
    return [texts[index] for index in sorted(texts)]


def finish_of(reply: Reply) -> str:
    chunks = [reply.json] if reply.headers["Content-Type"] == "application/json" else reply.chunks
    reasons = [choice["finish_reason"] for chunk in chunks for choice in chunk["choices"]]
    (reason,) = [reason for reason in reasons if reason is not None]
    return str(reason)


def scripted(*items: Tokens | BaseException) -> FakeDispatcher:
    return FakeDispatcher(script=lambda _: items)
