"""What is answered: text, streams, bounds and accounts."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from structlog.testing import capture_logs

from gateway.dispatch import SequenceRequest, Tokens
from tests.gateway.conftest import Gateway, ServeGateway
from tests.gateway.counted import counted
from tests.gateway.fakes import MODEL, FakeDispatcher, says, speaks, tiny_card
from tests.gateway.talk import PATHS, body_for, finish_of, scripted, text_of
from tests.gateway.tiny_tokenizer import ids_of_bytes, ids_of_text, tokenizer_files
from tests.support import wait_until

SAMPLE = "děľá 🌶️ 👨‍👩‍👧 今天 สวัสดี"


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("stream", [False, True])
async def test_characters_split_over_tokens_are_whole_in_every_chunk(
    serve: ServeGateway, path: str, stream: bool
) -> None:
    """A client shows each chunk as it comes."""
    gateway = await serve(scripted(*speaks([token_id] for token_id in ids_of_bytes(SAMPLE.encode()))))
    reply = await gateway.post(path, body_for(path, stream=stream))
    assert text_of(reply) == SAMPLE
    assert b"\\ud" not in reply.body
    assert "\ufffd" not in reply.body.decode()


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("stop", ["END", ["END"], ["zzz", "END beta"]])
async def test_text_ends_before_a_stop_string_and_the_sequence_is_cancelled(
    serve: ServeGateway, path: str, stream: bool, stop: str | list[str]
) -> None:
    """The same text in every form, and nothing more is computed."""
    steps = [ids_of_text(part) for part in ("alpha ", "E", "ND", " be", "ta", " gamma")]
    gateway = await serve(scripted(*(Tokens(token_ids=step) for step in steps)))
    reply = await gateway.post(path, body_for(path, stream=stream, stop=stop))
    assert (text_of(reply), finish_of(reply)) == ("alpha ", "stop")
    assert gateway.dispatcher.last.cancels == ["the answer is complete"]
    assert gateway.outcome("completed") == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_withheld_text_comes_out_when_the_sequence_ends(serve: ServeGateway, stream: bool) -> None:
    """What began like a stop string but was none is part of the answer."""
    gateway = await serve(scripted(*says("the ", "EN", finish="length")))
    reply = await gateway.complete(stop="END", stream=stream)
    assert (text_of(reply), finish_of(reply)) == ("the EN", "length")


async def test_nothing_of_the_prompt_is_in_the_first_delta(serve: ServeGateway) -> None:
    """A prompt may end inside a character; what decodes them together would show it."""
    character = "今".encode()
    prompt = [*ids_of_text("secret words "), *ids_of_bytes(character[:2])]
    gateway = await serve(scripted(*speaks([ids_of_bytes(character[2:]), ids_of_text("public")])))
    for stream in (False, True):
        assert text_of(await gateway.complete(prompt, stream=stream)) == "public"


@pytest.mark.parametrize("stream", [False, True])
async def test_an_empty_answer_is_an_answer(serve: ServeGateway, stream: bool) -> None:
    """The model may say at once that it is done."""
    gateway = await serve(scripted(*says()))
    reply = await gateway.chat(stream=stream)
    assert (text_of(reply), finish_of(reply)) == ("", "stop")


async def test_a_chat_stream_has_its_role_first_one_finish_and_done_last(gateway: Gateway) -> None:
    """Clients hang without the end, and take a cut for success without the finish reason."""
    chunks = (await gateway.chat(stream=True)).chunks
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None, None, None, "stop"]
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert len({(chunk["id"], chunk["created"], chunk["model"]) for chunk in chunks}) == 1
    assert all("usage" not in chunk for chunk in chunks)


@pytest.mark.parametrize("path", PATHS)
async def test_usage_is_the_last_chunk_when_it_is_asked_for(gateway: Gateway, path: str) -> None:
    """And equal to that of the whole answer; elsewhere it is null."""
    options = {"include_usage": True}
    chunks = (await gateway.post(path, body_for(path, stream=True, stream_options=options))).chunks
    whole = await gateway.post(path, body_for(path))
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"] == whole.json["usage"]
    assert all(chunk["usage"] is None and chunk["choices"] for chunk in chunks[:-1])
    usage = whole.json["usage"]
    assert usage["prompt_tokens"] + usage["completion_tokens"] == usage["total_tokens"]
    assert usage["prompt_tokens"] == len(gateway.dispatcher.last.sequence.prompt_ids)
    assert usage["completion_tokens"] == len(ids_of_text("Hello")) + len(ids_of_text(" world"))


async def test_each_batch_of_tokens_arrives_before_the_next_is_made(serve: ServeGateway) -> None:
    """Nothing between model and client may collect chunks."""
    gateway = await serve(scripted())
    async with asyncio.timeout(5):
        task = asyncio.create_task(gateway.http.post("/v1/chat/completions", json=body_for("chat", stream=True)))
        await wait_until(lambda: bool(gateway.dispatcher.streams), "submitted")
        gateway.dispatcher.last.put(Tokens(token_ids=ids_of_text("one")))
        async with await task as response:
            assert response.headers["Content-Type"] == "text/event-stream"
            assert response.headers["Cache-Control"] == "no-cache"
            assert response.headers["X-Accel-Buffering"] == "no"
            assert response.headers["x-sluicegate-class"] == "standard"
            await response.content.readuntil(b'"one"')
            gateway.dispatcher.last.put(Tokens(token_ids=ids_of_text("two")))
            await response.content.readuntil(b'"two"')
            gateway.dispatcher.last.put(Tokens(token_ids=(), finish="length"))
            assert (await response.read()).endswith(b"data: [DONE]\n\n")


async def test_compression_is_never_applied(gateway: Gateway) -> None:
    """It would hold chunks back until a block is full."""
    reply = await gateway.post(
        "/v1/completions", body_for("completions", stream=True), headers={"Accept-Encoding": "gzip"}
    )
    assert "Content-Encoding" not in reply.headers


async def test_many_streams_at_once_keep_their_words_apart(serve: ServeGateway) -> None:
    """Every stream whole, in order, finished once."""

    def script(sequence: SequenceRequest) -> Sequence[Tokens]:
        return speaks([[token_id] for token_id in sequence.prompt_ids * 20], finish="length")

    gateway = await serve(FakeDispatcher(script=script))
    prompts = [f"client {index} says 今天 " for index in range(64)]
    replies = await asyncio.gather(*(gateway.complete(prompt, stream=True) for prompt in prompts))
    assert [text_of(reply) for reply in replies] == [prompt * 20 for prompt in prompts]
    assert gateway.outcome("completed") == gateway.num_requests == 64
    assert gateway.num_open == 0


async def test_what_does_not_fit_the_context_is_refused_before_the_queue(gateway: Gateway) -> None:
    """A prompt that can never run would wait for ever."""
    for reply in (
        await gateway.complete([5] * 256),
        await gateway.complete([5] * 5000),
        await gateway.complete([5] * 250, max_tokens=7),
        await gateway.chat("word " * 300),
        await gateway.chat(max_tokens=10**12),
    ):
        assert (reply.status, reply.error["code"]) == (400, "context_length_exceeded")
        assert reply.error["param"] in {"prompt", "messages", "max_tokens"}
    assert gateway.dispatcher.streams == []


@pytest.mark.parametrize(
    ("fields", "expected"), [({}, 6), ({"max_tokens": None}, 6), ({"max_tokens": 6}, 6), ({"max_tokens": 1}, 1)]
)
async def test_without_a_limit_the_answer_may_fill_the_context(
    gateway: Gateway, fields: dict[str, object], expected: int
) -> None:
    """Documented, and bounded by the model."""
    await gateway.complete([5] * 250, **fields)
    assert gateway.dispatcher.last.sequence.max_tokens == expected


async def test_ids_beyond_the_vocabulary_are_refused(gateway: Gateway) -> None:
    """An embedding table read past its end is a fault of the device."""
    reply = await gateway.complete([5, 331])
    assert (reply.status, reply.error["param"]) == (400, "prompt")
    assert (await gateway.complete([5, 330])).status == 200


@pytest.mark.parametrize("name", ["nope", "", "../../etc/passwd", "x" * 300_000, "tiny\x00"])
@pytest.mark.parametrize("path", PATHS)
async def test_an_unknown_model_is_a_404(gateway: Gateway, path: str, name: str) -> None:
    """Its name comes back short, and goes nowhere else."""
    reply = await gateway.post(path, body_for(path, model=name))
    assert (reply.status, reply.error["code"], reply.error["param"]) == (404, "unknown_model", "model")
    assert len(reply.body) < 1000


async def test_with_no_model_at_all_nobody_can_serve(serve: ServeGateway) -> None:
    """Another replica may know one, so this is a 503."""
    gateway = await serve(FakeDispatcher(cards=()))
    reply = await gateway.chat()
    assert (reply.status, reply.error["code"]) == (503, "no_worker")
    assert 1 <= int(reply.headers["Retry-After"]) <= 6


async def test_a_tokenizer_that_nobody_has_is_a_503(serve: ServeGateway) -> None:
    """The model's last worker left between two requests."""
    card = tiny_card(tokenizer_files(template="other"))
    gateway = await serve(FakeDispatcher(cards=(card,)))
    assert (await gateway.chat()).error["code"] == "no_worker"


async def test_the_request_is_handed_on_under_an_id_of_ours(gateway: Gateway) -> None:
    """Two clients that send the same id must not meet inside."""
    headers = {"x-request-id": "mine"}
    replies = [await gateway.post(PATHS[0], body_for(PATHS[0], service_tier="flex"), headers=headers) for _ in range(2)]
    own = [stream.request.request_id for stream in gateway.dispatcher.streams]
    assert len(set(own)) == 2
    assert "mine" not in own
    assert [reply.headers["x-request-id"] for reply in replies] == ["mine", "mine"]
    assert [reply.json["id"] for reply in replies] == [f"chatcmpl-{request_id}" for request_id in own]
    assert gateway.dispatcher.last.request.class_name == "batch"
    assert replies[0].headers["x-sluicegate-class"] == "batch"


async def test_a_request_is_one_log_line_without_its_words(gateway: Gateway) -> None:
    """Operators need its numbers, nobody its text."""
    with capture_logs() as logs:
        await gateway.chat("a secret", service_tier="priority", user="somebody")
    (line,) = logs
    assert line["event"] == "request"
    assert (line["outcome"], line["status"], line["model"], line["class_name"]) == (
        "completed",
        200,
        MODEL,
        "interactive",
    )
    assert line["prompt_tokens"] == len(gateway.dispatcher.last.sequence.prompt_ids)
    assert line["completion_tokens"] == len(ids_of_text("Hello")) + len(ids_of_text(" world"))
    assert line["duration_ms"] > 0
    assert "secret" not in str(line)
    assert "somebody" not in str(line)


async def test_every_request_is_counted_once_whatever_it_was(gateway: Gateway) -> None:
    """The counts must add up to what clients sent."""
    await gateway.chat()
    await gateway.chat(stream=True)
    await gateway.chat(temperature=9)
    await gateway.chat(model="nope")
    await gateway.post(PATHS[0], b"{")
    await gateway.post(PATHS[0], b"{}", headers={"Content-Type": "text/plain"})
    counts = {
        name: gateway.outcome(name)
        for name in ("completed", "invalid_value", "unknown_model", "unsupported_media_type")
    }
    assert counts == {"completed": 2, "invalid_value": 2, "unknown_model": 1, "unsupported_media_type": 1}
    assert gateway.num_requests == 6


async def test_first_and_later_tokens_are_timed(gateway: Gateway) -> None:
    """Once per stream, and once per batch after it."""
    await gateway.chat(stream=True)
    registry = gateway.metrics.registry
    assert counted(registry, "sluicegate_first_token_seconds_count", **{"class": "standard"}) == 1
    assert counted(registry, "sluicegate_inter_token_seconds_count") == 1


async def test_a_prompt_that_is_too_long_in_characters_is_refused_before_it_is_encoded(gateway: Gateway) -> None:
    """Finding out how many tokens four megabytes are takes seconds, and the answer would be the same."""
    reply = await gateway.complete(prompt="x" * 3_000_000)
    assert (reply.status, reply.error["code"], reply.error["param"]) == (400, "context_length_exceeded", "prompt")
    assert "the prompt alone takes more" in reply.error["message"]
