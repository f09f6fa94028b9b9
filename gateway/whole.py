"""Answers that are not streamed: collected, then written in one piece."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

from gateway.endpoint import Body
from gateway.fan_in import reading
from gateway.logprobs import prompt_logprobs
from gateway.reply import Choice, Reply, check_failures
from gateway.short_cut import collect_at_once
from gateway.token_scores import Score


class Collected:
    """All that came of one choice."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.scores: list[Score] = []


async def whole_answer(reply: Reply[Body]) -> bytes:
    """The body of the answer. Raises ``Refused`` when a choice failed."""
    collected = await _collect(reply)
    choices = [
        await _choice(reply, index, choice, of_choice)
        for index, (choice, of_choice) in enumerate(zip(reply.choices, collected, strict=True))
    ]
    body = reply.head.as_json(reply.endpoint.whole_object_name)
    body |= reply.endpoint.whole(choices, await _prompt_logprobs(reply))
    return orjson.dumps(body | {"usage": reply.usage.as_json()})


async def _collect(reply: Reply[Body]) -> Sequence[Collected]:
    collected = [Collected() for _ in reply.choices]
    for choice, of_choice in zip(reply.choices, collected, strict=True):
        collect_at_once(choice, reply.record, of_choice.texts)
    async with reading(reply.streams) as fan_in:
        while fan_in.is_open:
            arrived = await fan_in.next()
            reply.record.items_arrived(arrived)
            for index, item in arrived:
                delta = reply.take(index, item)
                collected[index].texts.append(delta.text)
                collected[index].scores.extend(delta.scores)
                if reply.choices[index].has_ended:
                    fan_in.leave(index)
            check_failures(arrived)
    return collected


async def _choice(reply: Reply[Body], index: int, choice: Choice, collected: Collected) -> dict[str, Any]:
    tells_logprobs = reply.body.num_top_logprobs is not None
    return {
        "index": index,
        **reply.endpoint.whole_choice("".join(collected.texts)),
        "logprobs": await reply.logprobs(collected.scores) if tells_logprobs else None,
        "finish_reason": choice.output.finish,
        "stop_reason": choice.output.stop_reason,
    }


async def _prompt_logprobs(reply: Reply[Body]) -> Sequence[Any]:
    """vLLM's, one for each choice; none when they are not asked for."""
    num_top = reply.body.prompt_logprobs
    if num_top is None:
        return ()
    return [
        await reply.pool.run(prompt_logprobs, choice.prompt.ids, choice.stream.prompt_logprobs, reply.names, num_top)
        for choice in reply.choices
    ]
