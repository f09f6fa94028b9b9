"""What every handler is given: the machinery, the metrics, the bounds, the classes, the keys, the tokenizers."""

from __future__ import annotations

from dataclasses import dataclass

from aiohttp import web

from gateway.api_keys import ApiKeys
from gateway.body_room import BodyRoom
from gateway.class_table import ClassTable
from gateway.dispatch import Dispatcher
from gateway.door_log import DoorLog
from gateway.errors import Reason, Refused
from gateway.http_settings import HttpSettings
from gateway.metrics import Metrics
from gateway.schema import shorten
from gateway.tokenizer_pool import TokenizerPool
from workers.wire import ModelCard


@dataclass(frozen=True, slots=True, kw_only=True)
class Api:
    """``started_at`` is a Unix time in seconds. ``door``: where the end of each request is recorded."""

    dispatcher: Dispatcher
    metrics: Metrics
    settings: HttpSettings
    tokenizers: TokenizerPool
    bodies: BodyRoom
    classes: ClassTable
    keys: ApiKeys
    started_at: int
    door: DoorLog | None = None

    def model(self, name: str) -> ModelCard:
        """The card of a model. Raises ``Refused``: 404 when others are served, 503 when nothing is."""
        cards = self.dispatcher.models()
        for card in cards:
            if card.name == name:
                return card
        if not cards:
            raise Refused(Reason.NO_WORKER, "No worker serves any model now.")
        raise Refused(Reason.UNKNOWN_MODEL, f"The model '{shorten(name)}' does not exist.", param="model")


API = web.AppKey("api", Api)
