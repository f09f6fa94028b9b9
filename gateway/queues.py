"""The waiting queues that this gateway speaks to: one per model, made when its model is first seen."""

from __future__ import annotations

from collections.abc import Mapping

import redis.asyncio

from admission.queue import QueueBounds
from admission.redis_queue import OFFERS_AT_ONCE, RedisQueue
from admission.turns import Turns
from gateway.door_log import DoorLog


class Queues:
    """Queues by model name. Names come from workers, never from clients, so there are few."""

    def __init__(self, client: redis.asyncio.Redis, *, bounds: QueueBounds, door: DoorLog | None = None) -> None:
        self.bounds = bounds
        self._client = client
        self._door = door
        self._offers = Turns(OFFERS_AT_ONCE)
        self._queues: dict[str, RedisQueue] = {}

    def of(self, model: str) -> RedisQueue:
        queue = self._queues.get(model)
        if queue is None:
            observer = None if self._door is None else self._door.of(model)
            queue = self._queues[model] = RedisQueue(
                self._client, model=model, bounds=self.bounds, offers=self._offers, observer=observer
            )
        return queue

    def by_model(self) -> Mapping[str, RedisQueue]:
        return dict(self._queues)

    async def aclose(self) -> None:
        """Close the connections of every queue; the client stays open."""
        for queue in self._queues.values():
            await queue.aclose()
