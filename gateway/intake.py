"""From the receipt of a generation request to its place in the queue.

Body, schema, class, model, tokenising, the context's bound, the queue: each step may refuse, and the deadline may pass
in any of them.
"""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from aiohttp import web

from admission.classes import PriorityClass
from gateway.api import Api
from gateway.api_keys import Caller
from gateway.chunks import ChoiceJson, ReplyHead, Usage
from gateway.class_table import CLASS_CHOICE_HEADER
from gateway.deadlines import DEADLINE_HEADER, Deadline, header_deadline_ms
from gateway.dispatch import GenerationRequest, SequenceRequest, Tokens, TokenStream
from gateway.errors import Reason, Refused
from gateway.json_body import read_object
from gateway.output import OutputText
from gateway.record import RequestRecord
from gateway.request_ids import ids_of
from gateway.schema import GenerationBody
from gateway.tokenizer_pool import TokenizerPool
from gateway.tokens import ChatTokenizer
from workers.wire import ModelCard

CLASS_HEADER = "x-sluicegate-class"
CLAMPED_HEADER = "x-sluicegate-class-clamped"
"""The class that was asked for, when the API key allows only a lesser one."""

Body = TypeVar("Body", bound=GenerationBody)


class Endpoint(Protocol[Body]):
    """What differs between the endpoints. ``prompt_param`` names the field that holds the prompt."""

    path: str
    id_prefix: str
    prompt_param: str
    choice: ChoiceJson
    whole_object_name: str

    def parse(self, body: dict[str, Any]) -> Body: ...

    async def encode(
        self, body: Body, card: ModelCard, tokenizer: ChatTokenizer, pool: TokenizerPool
    ) -> tuple[int, ...]:
        """The prompt's ids. Raises ``Refused`` when the prompt cannot be encoded."""
        ...

    def whole(self, text: str, finish: str) -> dict[str, Any]:
        """The choice of an answer that is not streamed."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Started(Generic[Body]):
    """A request whose sequence is in the queue or running."""

    endpoint: Endpoint[Body]
    body: Body
    head: ReplyHead
    headers: dict[str, str]
    stream: TokenStream
    output: OutputText
    record: RequestRecord
    prompt_tokens: int

    def take(self, item: Tokens) -> str:
        """The text of an item, accounted for. Raises ``Refused`` when the sequence failed."""
        if item.token_ids:
            self.record.tokens_arrived()
        text = self.output.take(item)
        self.record.completion_tokens = self.output.num_tokens
        return text

    @property
    def usage(self) -> Usage:
        return Usage(prompt_tokens=self.prompt_tokens, completion_tokens=self.output.num_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """A request at the door: whose it is, and what is kept of it from its receipt on."""

    api: Api
    request: web.Request
    caller: Caller
    record: RequestRecord
    deadline: Deadline


async def start(arrival: Arrival, endpoint: Endpoint[Body]) -> Started[Body]:
    """Check the request, tokenise it, and put it into the queue, within its deadline. Raises ``Refused``."""
    async with arrival.deadline.held():
        started = await _start(arrival, endpoint)
    arrival.record.is_queued = True
    return started


async def _start(arrival: Arrival, endpoint: Endpoint[Body]) -> Started[Body]:
    api, request, record, deadline = arrival.api, arrival.request, arrival.record, arrival.deadline
    settings = api.settings
    deadline.within_ms(header_deadline_ms(request.headers.getall(DEADLINE_HEADER, ())))
    fields = await read_object(request, max_bytes=settings.max_body_bytes, timeout_s=settings.body_read_s)
    body = endpoint.parse(fields)
    body.check()
    asked = api.classes.choose(
        names=request.headers.getall(CLASS_CHOICE_HEADER, ()), priority=body.priority, service_tier=body.service_tier
    )
    cls = arrival.caller.clamp(asked)
    record.class_name = cls.name
    deadline.within_us(cls.default_deadline_us)
    deadline.within_ms(body.deadline_ms)
    card = api.model(body.model)
    record.model = card.name
    tokenizer = await api.tokenizers.get(card.tokenizer_digest)
    prompt_ids = await endpoint.encode(body, card, tokenizer, api.tokenizers)
    record.prompt_tokens = len(prompt_ids)
    request_id = ids_of(request).own
    sequence = SequenceRequest(
        prompt_ids=prompt_ids,
        max_tokens=_output_bound(body, card, len(prompt_ids), endpoint.prompt_param),
        sampling=body.sampling(fresh_seed=secrets.randbits(63)),
    )
    (stream,) = await api.dispatcher.submit(
        GenerationRequest(
            request_id=request_id,
            model=card.name,
            class_name=cls.name,
            sequences=(sequence,),
            deadline_us=deadline.at_us,
            tenant=arrival.caller.tenant,
        )
    )
    return Started(
        endpoint=endpoint,
        body=body,
        head=ReplyHead(
            reply_id=f"{endpoint.id_prefix}-{request_id}",
            created=int(time.time()),
            model=card.name,
            service_tier=cls.service_tier,
        ),
        headers=_class_headers(asked, cls),
        stream=stream,
        output=OutputText(tokenizer.detokenizer(prompt_ids), body.stop),
        record=record,
        prompt_tokens=len(prompt_ids),
    )


def _class_headers(asked: PriorityClass, used: PriorityClass) -> dict[str, str]:
    headers = {CLASS_HEADER: used.name}
    if used is not asked:
        headers[CLAMPED_HEADER] = asked.name
    return headers


def _output_bound(body: GenerationBody, card: ModelCard, prompt_tokens: int, prompt_param: str) -> int:
    """The most tokens to generate: what the client asks for, else all that fits. Refuses what does not fit."""
    room = card.context_length - prompt_tokens
    wanted = 1 if body.output_limit is None else body.output_limit
    if wanted > room:
        message = (
            f"The context has {card.context_length} tokens; the prompt has {prompt_tokens}, and {wanted} are to come."
        )
        param = prompt_param if room < 1 else "max_tokens"
        raise Refused(Reason.CONTEXT_LENGTH_EXCEEDED, message, param=param)
    return room if body.output_limit is None else body.output_limit
