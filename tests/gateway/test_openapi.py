"""The API's description: valid, complete, and true of what is taken and answered."""

from __future__ import annotations

import json
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from openapi_spec_validator import OpenAPIV31SpecValidator

from gateway.dispatch import Readiness, TokenLogprob, Tokens
from gateway.errors import ANSWERS, Reason, Refused
from gateway.openapi import describe
from gateway.routes import HEALTH_PATHS, api_routes, metrics_route
from tests.gateway.conftest import Gateway, Reply
from tests.gateway.fakes import MODEL
from tests.gateway.talk import PATHS, body_for
from tests.gateway.tiny_tokenizer import ids_of_text

DESCRIPTION = json.loads(json.dumps(describe([*api_routes(), metrics_route()])))


def validator(schema: dict[str, Any]) -> Draft202012Validator:
    """Checks values against a schema of the description."""
    return Draft202012Validator(schema | {"components": DESCRIPTION["components"]})


def operation(path: str) -> dict[str, Any]:
    operations = DESCRIPTION["paths"][path]
    return dict(operations.get("post") or operations["get"])


def request_schema(path: str) -> dict[str, Any]:
    return dict(operation(path)["requestBody"]["content"]["application/json"]["schema"])


def check_answer(path: str, reply: Reply) -> None:
    """Raise unless the description knows the status, the type and the body."""
    response = operation(path)["responses"][str(reply.status)]
    content = response["content"][reply.headers["Content-Type"].split(";")[0]]
    if "x-event" in content:
        events = validator(content["x-event"])
        for chunk in reply.chunks:
            events.validate(chunk)
    else:
        validator(content["schema"]).validate(reply.json)
    assert [name for name in response["headers"] if name not in reply.headers and "retry" not in name.lower()] == []


def test_it_is_openapi_3_1() -> None:
    """Generators and test tools read it."""
    assert DESCRIPTION["openapi"] == "3.1.0"
    OpenAPIV31SpecValidator(DESCRIPTION).validate()


async def test_it_describes_every_route_that_is_served(gateway: Gateway) -> None:
    """A route that nobody described would be a secret; one that is only described, a lie."""
    async with gateway.http.get("/openapi.json") as response:
        served = await response.json()
    described = {(method.upper(), path) for path, ways in served["paths"].items() for method in ways}
    app = gateway.runner.app
    assert app is not None
    routes = {(route.method, route.resource.canonical) for route in app.router.routes() if route.resource is not None}
    assert routes - {(method, path) for method, path in routes if method == "HEAD"} - described == {
        ("GET", "/openapi.json")
    }
    assert described <= routes
    assert served == DESCRIPTION


def test_every_reason_for_a_refusal_is_somewhere() -> None:
    """Each is a promise to clients; those about routes themselves have no route to stand at."""
    told = json.dumps(DESCRIPTION["paths"])
    untold = {reason for reason in Reason if f"`{reason.value}`" not in told}
    assert untold == {Reason.UNKNOWN_ROUTE, Reason.METHOD_NOT_ALLOWED}


def test_only_health_is_open() -> None:
    """As the gateway has it."""
    assert {path for path in DESCRIPTION["paths"] if operation(path).get("security") == []} == HEALTH_PATHS


LOGPROBS = [
    Tokens(
        token_ids=ids_of_text("Hi"),
        logprobs=tuple(TokenLogprob(own=-0.5, top=((5, -0.5), (6, -1.5))) for _ in ids_of_text("Hi")),
    ),
    Tokens(token_ids=(), finish="length"),
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", PATHS)
async def test_answers_are_as_described(gateway: Gateway, path: str, stream: bool) -> None:
    """With log-probabilities and counts, whole and streamed; and no field beside those that are told."""
    gateway.dispatcher.script = lambda _: LOGPROBS
    wanted: dict[str, Any] = {"logprobs": True, "top_logprobs": 2} if "chat" in path else {"logprobs": 2}
    if stream:
        wanted |= {"stream_options": {"include_usage": True}}
    body = body_for(path, stream=stream, n=2, **wanted)
    validator(request_schema(path)).validate(body)
    reply = await gateway.post(path, body)
    assert reply.status == 200
    check_answer(path, reply)


async def test_the_other_answers_are_as_described(gateway: Gateway) -> None:
    """Whatever a client may ask for."""
    posts = {"/tokenize": {"model": MODEL, "prompt": "Hi"}, "/detokenize": {"model": MODEL, "tokens": [5]}}
    for path, body in posts.items():
        validator(request_schema(path)).validate(body)
        check_answer(path, await gateway.post(path, body))
    for path in ("/v1/models", "/v1/models/{model}", "/livez", "/readyz"):
        async with gateway.http.get(path.format(model=MODEL)) as response:
            check_answer(path, Reply(response.status, response.headers, await response.read()))
    gateway.dispatcher.ready = Readiness(ready=False, reason="no worker")
    async with gateway.http.get("/readyz") as response:
        check_answer("/readyz", Reply(response.status, response.headers, await response.read()))


@pytest.mark.parametrize("reason", [reason for reason in Reason if ANSWERS[reason].status >= 429])
@pytest.mark.parametrize("path", PATHS)
async def test_refusals_are_as_described(gateway: Gateway, path: str, reason: Reason) -> None:
    """With the headers that say whether and when to come back."""
    gateway.dispatcher.refusal = Refused(reason, "No.")
    check_answer(path, await gateway.post(path, body_for(path)))


BAD_BODIES = [
    {"max_tokens": -1},
    {"max_tokens": 1.5},
    {"max_tokens": "16"},
    {"temperature": 2.1},
    {"temperature": "0.7"},
    {"temperature": True},
    {"top_p": -0.1},
    {"top_k": -2},
    {"n": 0},
    {"n": 129},
    {"stop": ""},
    {"stop": ["x", ""]},
    {"stop": ["x"] * 5},
    {"stop": 3},
    {"stop_token_ids": [-1]},
    {"logit_bias": {"x": 1}},
    {"logit_bias": {"5": 101}},
    {"seed": 1 << 63},
    {"stream": "yes"},
    {"stream": True, "stream_options": {"x": 1}},
    {"service_tier": "gold"},
    {"metadata": {"k": 1}},
    {"metadata": {"k" * 65: "v"}},
    {"metadata": {str(number): "v" for number in range(17)}},
    {"model": None},
    {"model": 5},
    {"guided_json": {}},
    {"best_off": 1},
]


@pytest.mark.parametrize("fields", BAD_BODIES, ids=json.dumps)
@pytest.mark.parametrize("path", PATHS)
async def test_what_the_schema_forbids_is_refused(gateway: Gateway, path: str, fields: dict[str, object]) -> None:
    """The description promises no less than the gateway checks: clients that validate first see the same."""
    body = body_for(path, **fields)
    assert not validator(request_schema(path)).is_valid(body)
    reply = await gateway.post(path, body)
    assert reply.status == 400
    check_answer(path, reply)
