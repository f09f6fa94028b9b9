"""Two ids of a request: ours, which names it inside, and the client's, which is only repeated to it and to the log."""

from __future__ import annotations

import re
import uuid
from dataclasses import dataclass

from aiohttp import web

ID_HEADER = "x-request-id"
_ACCEPTED = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/+=@-]{0,127}")


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestIds:
    """``client`` is None when the client sent no id, or one that is too long or not plain."""

    own: str
    client: str | None

    @property
    def shown(self) -> str:
        """The ``x-request-id`` of the answer."""
        return self.own if self.client is None else self.client


_IDS = web.RequestKey("request_ids", RequestIds)


def ids_of(request: web.BaseRequest) -> RequestIds:
    """The ids of this request, made at the first call."""
    ids = request.get(_IDS)
    if ids is None:
        given = request.headers.get(ID_HEADER, "")
        ids = RequestIds(own=uuid.uuid4().hex, client=given if _ACCEPTED.fullmatch(given) else None)
        request[_IDS] = ids
    return ids
