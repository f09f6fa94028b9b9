"""From the receipt of a generation request to its place in the queue.

Body, schema, class, model, tokenising, the context's bound, the queue: each step may refuse, and the deadline may pass
in any of them.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from aiohttp import web

from admission.classes import PriorityClass
from gateway.api import Api
from gateway.api_keys import Caller
from gateway.body_room import BodyShare
from gateway.chunks import ReplyHead
from gateway.class_table import CLASS_CHOICE_HEADER
from gateway.deadlines import DEADLINE_HEADER, Deadline, header_deadline_ms
from gateway.dispatch import GenerationRequest
from gateway.early import EARLY_HEADER, wants_early
from gateway.endpoint import Body, Endpoint
from gateway.json_body import read_object
from gateway.record import RequestRecord
from gateway.reply import Reply
from gateway.request_ids import ids_of
from gateway.sequences import check_chars, choices_of, sequences_of

CLASS_HEADER = "x-sluicegate-class"
CLAMPED_HEADER = "x-sluicegate-class-clamped"
"""The class that was asked for, when the API key allows only a lesser one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """A request at the door: whose it is, and what is kept of it from its receipt on."""

    api: Api
    request: web.Request
    caller: Caller
    record: RequestRecord
    deadline: Deadline


async def start(arrival: Arrival, endpoint: Endpoint[Body]) -> Reply[Body]:
    """Check the request, tokenise it, and put it into the queue, within its deadline. Raises ``Refused``."""
    async with arrival.deadline.held():
        with arrival.api.bodies.share() as share:
            reply = await _start(arrival, endpoint, share)
    arrival.record.is_queued = True
    return reply


async def _start(arrival: Arrival, endpoint: Endpoint[Body], share: BodyShare) -> Reply[Body]:
    api, request, record, deadline = arrival.api, arrival.request, arrival.record, arrival.deadline
    settings = api.settings
    deadline.within_ms(header_deadline_ms(request.headers.getall(DEADLINE_HEADER, ())))
    fields = await read_object(request, share, max_bytes=settings.max_body_bytes, timeout_s=settings.body_read_s)
    body = endpoint.parse(fields)
    body.check()
    is_early = wants_early(request.headers.getall(EARLY_HEADER, ()), stream=bool(body.stream))
    asked = api.classes.choose(
        names=request.headers.getall(CLASS_CHOICE_HEADER, ()), priority=body.priority, service_tier=body.service_tier
    )
    cls = arrival.caller.clamp(asked)
    record.class_name = cls.name
    deadline.within_us(cls.default_deadline_us)
    deadline.within_ms(body.deadline_ms)
    card = api.model(body.model)
    record.model = card.name
    body.check_token_ids(card.vocab_size)
    tokenizer = await api.tokenizers.get(card.tokenizer_digest)
    check_chars(body.prompt_chars, card, tokenizer, endpoint.prompt_param)
    prompts = await endpoint.encode(body, tokenizer, api.tokenizers)
    record.prompt_tokens = sum([len(prompt.ids) for prompt in prompts])
    sequences = sequences_of(body, prompts, card, endpoint.prompt_param)
    request_id = ids_of(request).own
    streams = await api.dispatcher.submit(
        GenerationRequest(
            request_id=request_id,
            model=card.name,
            class_name=cls.name,
            sequences=sequences,
            deadline_us=deadline.at_us,
            tenant=arrival.caller.tenant,
        )
    )
    return Reply(
        endpoint=endpoint,
        body=body,
        head=ReplyHead(
            reply_id=f"{endpoint.id_prefix}-{request_id}",
            created=int(time.time()),
            model=card.name,
            service_tier=cls.service_tier,
        ),
        headers=_class_headers(asked, cls),
        choices=choices_of(body, prompts, streams, card, tokenizer),
        record=record,
        names=tokenizer.names,
        pool=api.tokenizers,
        is_early=is_early,
    )


def _class_headers(asked: PriorityClass, used: PriorityClass) -> dict[str, str]:
    headers = {CLASS_HEADER: used.name}
    if used is not asked:
        headers[CLAMPED_HEADER] = asked.name
    return headers
