"""The routes that do not generate, and what is answered where there is none."""

from __future__ import annotations

import hashlib
import re

import pytest

from gateway.api_keys import ApiKeys
from gateway.dispatch import Readiness
from gateway.key_file import ApiKey
from tests.gateway.conftest import Gateway, ServeGateway
from tests.gateway.fakes import MODEL, FakeDispatcher, tiny_card
from tests.gateway.raw_http import exchange, post
from tests.gateway.talk import PATHS, body_for
from tests.gateway.tiny_tokenizer import tokenizer_files


async def test_models_are_listed_with_their_context(gateway: Gateway) -> None:
    """As the official SDK reads them, and with vLLM's name of the limit."""
    models = await gateway.sdk.models.list()
    assert [(model.id, model.object, model.owned_by) for model in models.data] == [(MODEL, "model", "sluicegate")]
    assert (await gateway.sdk.models.retrieve(MODEL)).model_dump()["max_model_len"] == 256


async def test_a_model_name_may_have_slashes(serve: ServeGateway) -> None:
    """Hub ids have."""
    gateway = await serve(FakeDispatcher(cards=(tiny_card(tokenizer_files(), name="org/tiny"),)))
    async with gateway.http.get("/v1/models/org/tiny") as response:
        assert (await response.json())["id"] == "org/tiny"


@pytest.mark.parametrize("name", ["nope", "x" * 5000, "%00", "..%2f..%2fetc"])
async def test_an_unknown_model_is_not_found(gateway: Gateway, name: str) -> None:
    """With the same body as where it was asked to speak."""
    async with gateway.http.get(f"/v1/models/{name}") as response:
        assert response.status == 404
        assert (await response.json())["error"]["code"] in {"unknown_model", "unknown_route"}


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/v1",
        "/v1/completions/",
        "//v1/completions",
        "/V1/completions",
        "/v1/chat",
        "/v1/embeddings",
        "/v1/../v1/completions",
        "/v1%2fcompletions",
    ],
)
async def test_unknown_paths_have_an_error_body(gateway: Gateway, path: str) -> None:
    """The SDK shows its message; a page of text it cannot read."""
    answer = await exchange(gateway.port, post(path, b"{}", extra="Connection: close\r\n"))
    assert answer.startswith(b"HTTP/1.1 404 ")
    assert b'"code":"unknown_route"' in answer
    assert b"x-sluicegate-reason: unknown_route\r\n" in answer
    assert b"x-request-id: " in answer


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "OPTIONS", "PATCH"])
async def test_a_wrong_method_is_a_405_that_names_the_right_one(gateway: Gateway, method: str) -> None:
    """Browsers and curious people open the address."""
    async with gateway.http.request(method, "/v1/completions") as response:
        assert response.status == 405
        assert response.headers["Allow"] == "POST"
        assert (await response.json())["error"]["code"] == "method_not_allowed"


async def test_liveness_does_not_depend_on_readiness(gateway: Gateway) -> None:
    """A gateway without workers must be taken out of rotation, not killed."""
    gateway.dispatcher.ready = Readiness(ready=False, reason="no worker makes progress")
    async with gateway.http.get("/livez") as response:
        assert response.status == 200
    async with gateway.http.get("/readyz") as response:
        assert response.status == 503
        assert await response.json() == {"ready": False, "reason": "no worker makes progress"}
    gateway.dispatcher.ready = Readiness(ready=True)
    async with gateway.http.get("/readyz") as response:
        assert response.status == 200


async def test_metrics_are_in_the_text_format(gateway: Gateway) -> None:
    """As Prometheus scrapes them."""
    await gateway.chat()
    async with gateway.http.get("/metrics") as response:
        page = await response.text()
    assert response.headers["Content-Type"].startswith("text/plain; version=")
    assert 'sluicegate_requests_total{class="standard",outcome="completed"} 1.0' in page
    assert "sluicegate_streams_open 0.0" in page


async def test_no_word_of_a_client_becomes_a_metric(serve: ServeGateway) -> None:
    """H04: each would be a series for ever. After one of each kind, a thousand more add none."""
    known = ApiKey(name="web", digest=hashlib.sha256(b"sk-5f3a").digest(), tenant="acme")
    gateway = await serve(keys=ApiKeys(lambda: [known]))

    async def ask_everything(word: str) -> None:
        key = {"Authorization": "Bearer sk-5f3a"}
        await gateway.post(PATHS[0], body_for(PATHS[0], user=f"u{word}", metadata={word: word}), headers=key)
        await gateway.post(PATHS[0], body_for(PATHS[0], model=f"m{word}"), headers=key)
        await gateway.post(PATHS[0], body_for(PATHS[0]) | {f"f{word}": word}, headers=key)
        await gateway.post(PATHS[0], body_for(PATHS[0]), headers={"Authorization": f"Bearer {word}"})
        await gateway.post(PATHS[0], body_for(PATHS[0]), headers=key | {"x-priority-class": f"c{word}"})
        await gateway.post(PATHS[0], body_for(PATHS[0]), headers=key | {"x-request-id": f"r{word}", f"x-{word}": word})
        await gateway.post(f"/a{word}", {}, headers={"x-request-id": f"r{word}"})

    async def page() -> str:
        async with gateway.http.get("/metrics", headers={"Authorization": "Bearer sk-5f3a"}) as response:
            return await response.text()

    await ask_everything("zebra")
    before = await page()
    for index in range(150):
        await ask_everything(f"zebra{index}")
    after = await page()
    assert len(after.splitlines()) == len(before.splitlines())
    assert len(after) < 200_000
    assert not re.search("zebra|sk-", after)


@pytest.mark.parametrize("given", ["", "a b", "x" * 129, "bad\tid", "ünï", "-dash-first"])
async def test_odd_request_ids_are_replaced(gateway: Gateway, given: str) -> None:
    """They would go to logs as they are."""
    async with gateway.http.get("/livez", headers={"x-request-id": given}) as response:
        shown = response.headers["x-request-id"]
    assert shown != given
    assert len(shown) == 32
