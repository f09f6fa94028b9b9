"""The cases of area ``validation`` that need a whole gateway: bad values, each followed by a good request."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import openai
import pytest

from gateway.dispatch import TokenLogprob, Tokens
from tests.gateway.conftest import Gateway, Reply, ServeGateway
from tests.gateway.fakes import MODEL, FakeDispatcher, says, speaks
from tests.gateway.front_door import door
from tests.gateway.talk import PATHS, body_for, finish_of, scripted, text_of
from tests.gateway.tiny_tokenizer import ids_of_text, tokenizer_files
from tests.gateway.worker_peer import WorkerPeer
from tests.support import wait_until
from workers.fake_script import Echo, FakeScript
from workers.wire import LOWEST_LOGPROB

CHAT, COMPLETIONS = PATHS


async def is_refused(gateway: Gateway, reply: Reply, param: str | None) -> None:
    """With a 400 that names it, before any sequence was asked for; and the gateway serves the next one."""
    assert (reply.status, reply.error["type"]) == (400, "invalid_request_error"), reply.body
    assert reply.error["param"] == param
    assert gateway.dispatcher.streams == []
    assert (await gateway.complete("canary", max_tokens=4)).status == 200
    gateway.dispatcher.streams.clear()


@pytest.mark.parametrize("stream", [False, True])
async def test_an_empty_prompt_is_refused_in_every_form(gateway: Gateway, stream: bool) -> None:
    """A01: it took whole engines down; streamed or not, the same answer."""
    for prompt, param in (("", "prompt"), ([], "prompt"), ([""], "prompt[0]"), ([[]], "prompt[0]"), (None, "prompt")):
        await is_refused(gateway, await gateway.complete(prompt, stream=stream), param)
    body = {"model": MODEL, "max_tokens": 4, "stream": stream}
    await is_refused(gateway, await gateway.post(COMPLETIONS, body), "prompt")
    await is_refused(gateway, await gateway.post(CHAT, body | {"messages": []}), "messages")
    await is_refused(gateway, await gateway.post(CHAT, body), "messages")


async def test_a_conversation_of_no_tokens_is_an_empty_prompt(serve: ServeGateway) -> None:
    """A01: what a template makes of a conversation may be nothing."""
    files = tokenizer_files(template="{{ messages[0].content }}")
    gateway = await serve(FakeDispatcher(files=files))
    await is_refused(gateway, await gateway.chat(""), "messages")


async def test_a_prompt_that_is_too_long_never_enters_the_queue(serve: ServeGateway) -> None:
    """A03: it would wait for ever, and block those behind it."""
    gateway = await serve(FakeDispatcher(script=lambda _: []))
    running = [asyncio.create_task(gateway.complete()) for _ in range(3)]
    await wait_until(lambda: len(gateway.dispatcher.streams) == 3, "three requests run")
    reply = await gateway.complete([5] * (256 + 500))
    assert (reply.status, reply.error["code"], reply.error["param"]) == (400, "context_length_exceeded", "prompt")
    reply = await gateway.complete(["fits", "x " * 256])
    assert (reply.status, reply.error["param"]) == (400, "prompt[1]")
    assert len(gateway.dispatcher.streams) == 3
    for stream in gateway.dispatcher.streams:
        stream.put(*says("fine"))
    assert [reply.status for reply in await asyncio.gather(*running)] == [200] * 3


async def test_the_context_is_what_the_pool_can_hold(url: str, tmp_path: Path) -> None:
    """A04: a context beyond the pool was advertised, and prompts in between crashed the engine."""
    script = FakeScript(output=Echo(kind="echo"), slots=4, blocks=64, block_size=16, context_length=2048)
    async with door(url, tmp_path, worker=WorkerPeer(script)) as front:
        async with front.http.get("/v1/models") as response:
            (model,) = (await response.json())["data"]
        assert model["max_model_len"] == 1024
        refused = await front.complete(prompt=[5] * 1500)
        assert (refused.status, refused.json["error"]["code"]) == (400, "context_length_exceeded")
        assert (await front.complete()).status == 200


@pytest.mark.parametrize(
    "param", ["temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty"]
)
async def test_what_is_no_number_is_refused_however_it_is_written(gateway: Gateway, param: str) -> None:
    """A06: NaN passes every comparison, and poisons the batch."""
    for value in ("NaN", "Infinity", "-Infinity", "1e400"):
        body = f'{{"model": "{MODEL}", "prompt": "Hi", "{param}": {value}}}'
        await is_refused(gateway, await gateway.post(COMPLETIONS, body.encode()), None)
    for value in ('"0.7"', "true", "-2.0001", "100.0001", "[1]"):
        body = f'{{"model": "{MODEL}", "prompt": "Hi", "{param}": {value}}}'
        await is_refused(gateway, await gateway.post(COMPLETIONS, body.encode()), param)
    assert (await gateway.complete(**{param: None})).status == 200


async def test_tiny_values_reach_the_worker_as_they_are(gateway: Gateway) -> None:
    """A07: they are legal, and the sampler knows what to do with them."""
    for fields in (*[{"temperature": t} for t in (1e-12, 1e-5, 1e-3)], *[{"top_p": p} for p in (0, 1e-9, 1e-4)]):
        assert (await gateway.complete(**fields)).status == 200
        sampling = gateway.dispatcher.last.sequence.sampling
        assert {name: getattr(sampling, name) for name in fields} == fields


async def test_of_several_wild_values_the_first_is_named(gateway: Gateway) -> None:
    """A08: in the order in which parameters are described."""
    wild = {"temperature": 999_999, "top_p": -1, "repetition_penalty": 0}
    await is_refused(gateway, await gateway.complete(max_tokens=32, **wild), "temperature")
    for param, value in (*wild.items(), ("repetition_penalty", -1)):
        await is_refused(gateway, await gateway.complete(**{param: value}), param)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"n": 5_000_000}, "n"),
        ({"logprobs": 10**9}, "logprobs"),
        ({"prompt_logprobs": 10**9}, "prompt_logprobs"),
        ({"best_of": 10**9}, "best_of"),
        ({"stop": ["x"] * 100_000}, "stop"),
        ({"prompt": [[5]] * 100_000}, "prompt"),
        ({"prompt": ["x"] * 100_000}, "prompt"),
        ({"prompt": ["x"] * 100, "n": 2}, "n"),
        ({"logit_bias": {str(token_id): 1 for token_id in range(50_000)}}, "logit_bias"),
        ({"stop_token_ids": list(range(50_000))}, "stop_token_ids"),
        ({"seed": 10**30}, "seed"),
    ],
)
async def test_a_small_request_with_a_giant_count_is_refused(
    gateway: Gateway, fields: dict[str, object], param: str
) -> None:
    """A10: something would be made for each unit, on the event loop or in memory."""
    await is_refused(gateway, await gateway.post(COMPLETIONS, body_for(COMPLETIONS, **fields)), param)


async def test_a_giant_output_is_refused_by_the_context(gateway: Gateway) -> None:
    """A10: a count that fits an integer, but nothing else."""
    reply = await gateway.complete(max_tokens=10**12)
    assert (reply.status, reply.error["code"], reply.error["param"]) == (400, "context_length_exceeded", "max_tokens")
    reply = await gateway.complete(min_tokens=300)
    assert (reply.status, reply.error["code"], reply.error["param"]) == (400, "context_length_exceeded", "min_tokens")


@pytest.mark.parametrize("path", PATHS)
async def test_an_output_has_the_length_that_was_asked_for(gateway: Gateway, path: str) -> None:
    """A11: also when it is not given, or null; nothing else is a length."""
    for value in (0, -1, 1.5, "16", True):
        await is_refused(gateway, await gateway.post(path, body_for(path, max_tokens=value)), "max_tokens")
    for fields, bound in (({}, None), ({"max_tokens": None}, None), ({"max_tokens": 1}, 1)):
        assert (await gateway.post(path, body_for(path, **fields))).status == 200
        sequence = gateway.dispatcher.last.sequence
        assert sequence.max_tokens == (256 - len(sequence.prompt_ids) if bound is None else bound)


async def test_an_impossible_token_is_a_finite_number(serve: ServeGateway) -> None:
    """A13: JSON has no infinity; the sampled token is always told with its own number."""
    (hello,) = ids_of_text("H")
    logprob = TokenLogprob(own=-0.25, top=((20, -0.5), (21, LOWEST_LOGPROB)))
    item = Tokens(token_ids=(hello,), logprobs=(logprob,), finish="length")
    gateway = await serve(scripted(item))
    for path, fields in ((CHAT, {"logprobs": True, "top_logprobs": 2}), (COMPLETIONS, {"logprobs": 2})):
        reply = await gateway.post(path, body_for(path, logit_bias={"21": -100}, **fields))
        (choice,) = json.loads(reply.body, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))["choices"]
        assert "-9999.0" in str(choice["logprobs"])
        assert "-0.25" in str(choice["logprobs"])


async def test_a_stop_string_may_be_a_space(serve: ServeGateway) -> None:
    """A14: only the empty one matches everywhere."""
    gateway = await serve(FakeDispatcher(script=lambda _: says("one two")))
    assert text_of(await gateway.complete(stop=" ")) == "one"
    for stop in ([], None):
        assert text_of(await gateway.complete(stop=stop)) == "one two"


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("stop", ["END", ["END"]])
async def test_one_stop_string_may_stand_alone_or_in_a_list(
    serve: ServeGateway, path: str, stream: bool, stop: object
) -> None:
    """A15: the same text, the same end, in all eight."""
    gateway = await serve(FakeDispatcher(script=lambda _: speaks([ids_of_text("alpha END beta")])))
    reply = await gateway.post(path, body_for(path, stream=stream, stop=stop))
    assert (text_of(reply), finish_of(reply)) == ("alpha ", "stop")


MALFORMED: list[dict[str, object]] = [
    {"model": 5},
    {"messages": "hello"},
    {"messages": {"role": "user", "content": "x"}},
    {"messages": ["hello"]},
    {"messages": [None]},
    {"messages": [{"content": "x"}]},
    {"messages": [{"role": "nobody", "content": "x"}]},
    {"messages": [{"role": "user"}]},
    {"messages": [{"role": "user", "content": None}]},
    {"messages": [{"role": "user", "content": 7}]},
    {"messages": [{"role": "user", "content": [7]}]},
    {"messages": [{"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}]},
    {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
    {"messages": [{"role": "user", "content": "x", "surprise": 1}]},
    {"response_format": "garbage"},
    {"response_format": {"type": "json_schema"}},
    {"tools": "all"},
    {"stream": "yes"},
    {"stream_options": []},
    {"stop": 5},
    {"logit_bias": []},
    {"metadata": {"a": {"b": {}}}},
    {"surprise": 1},
]


@pytest.mark.parametrize("fields", MALFORMED)
async def test_a_malformed_body_is_a_400_that_the_sdk_can_read(gateway: Gateway, fields: dict[str, object]) -> None:
    """A18: its message is shown to people."""
    body = body_for(CHAT) | fields
    await is_refused(gateway, reply := await gateway.post(CHAT, body), reply.error["param"])
    with pytest.raises(openai.BadRequestError) as raised:
        await gateway.sdk.post("/chat/completions", body=body, cast_to=object)
    assert raised.value.param == reply.error["param"]
    assert reply.error["message"] in raised.value.message


async def test_stream_options_without_a_stream_are_refused(gateway: Gateway) -> None:
    """A19: as OpenAI does; with a stream, none of them is needed."""
    for fields in ({"stream": False}, {}):
        reply = await gateway.chat(stream_options={"include_usage": True}, **fields)
        await is_refused(gateway, reply, "stream_options")
    for options in (None, {}, {"include_usage": None}):
        assert (await gateway.chat(stream=True, stream_options=options)).status == 200
    reply = await gateway.chat(stream=True, stream_options={"x": 1})
    assert (reply.status, reply.error["param"]) == (400, "stream_options.x")


@pytest.mark.parametrize("path", PATHS)
async def test_an_unknown_model_is_not_found_and_not_repeated_at_length(gateway: Gateway, path: str) -> None:
    """A22: a missing one, or one that is no string, is a 400."""
    for model in ("nope", "", "../../etc/passwd", "x" * 300_000):
        reply = await gateway.post(path, body_for(path, model=model))
        assert (reply.status, reply.error["code"], reply.error["param"]) == (404, "unknown_model", "model")
        assert len(reply.body) < 500
    for model in (None, 5):
        await is_refused(gateway, await gateway.post(path, body_for(path, model=model)), "model")
