"""Streams of an origin, with a clock that the test moves."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from gateway.dispatch import TokenLogprob, Tokens
from gateway.errors import Reason
from gateway.estimates import Estimates
from gateway.metrics import Metrics
from gateway.stream import Stream, StreamBounds
from gateway.streams import Streams
from tests.gateway.fake_queue import claim_of
from workers.wire import Delivery, Scores


class Setup:
    """A registry with a clock that the test moves."""

    def __init__(self, bounds: StreamBounds | None = None) -> None:
        self.now_us = 0
        self.metrics = Metrics(CollectorRegistry())
        self.cancelled: list[str] = []
        clock = lambda: self.now_us  # noqa: E731
        self.estimates = Estimates()
        self.streams = Streams(
            clock=clock,
            metrics=self.metrics,
            estimates=self.estimates,
            bounds=bounds,
        )

    def open(self, sequence_id: str = "a", *, deadline_us: int | None = None) -> Stream:
        return self.streams.open(
            claim_of(sequence_id).entry,
            model="m",
            on_cancel=lambda stream: self.cancelled.append(stream.sequence_id),
            on_lost=lambda stream: self.streams.cut(stream, Reason.WORKER_LOST, "The worker is gone."),
            deadline_us=deadline_us,
        )

    @property
    def stale(self) -> float | None:
        return self.metrics.registry.get_sample_value("sluicegate_stale_tokens_total")


def part(position: int, *token_ids: int, finish: str = "", error: str = "", sequence_id: str = "a") -> Delivery:
    return Delivery(sequence_id=sequence_id, position=position, token_ids=token_ids, finish=finish, error=error)


async def read(stream: Stream) -> Tokens:
    items = [tokens async for tokens in stream]
    token_ids = tuple(token for item in items for token in item.token_ids)
    return Tokens(token_ids=token_ids, finish=items[-1].finish, error=items[-1].error)


def scores(start: int, stop: int) -> Scores:
    """Those of the tokens ``start`` to ``stop``, which say of which they are."""
    own = tuple(-float(token) for token in range(start, stop))
    return Scores(own=own, top_ids=tuple(range(start, stop)), top=own)


def logprobs(start: int, stop: int) -> tuple[TokenLogprob, ...]:
    return tuple(TokenLogprob(own=-float(token), top=((token, -float(token)),)) for token in range(start, stop))
