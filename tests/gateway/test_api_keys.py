"""Who may ask: known keys only, at most their class, at most so much at once."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from contextlib import ExitStack

import openai
import pytest
from structlog.testing import capture_logs

from admission.classes import BATCH, INTERACTIVE, STANDARD
from gateway.api_keys import ANYBODY, ApiKeys, Caller
from gateway.app import MetricsAt
from gateway.class_table import CLASS_CHOICE_HEADER
from gateway.errors import Reason, Refused
from gateway.forecast import LEAST_SPREAD_S
from gateway.key_file import ApiKey
from tests.gateway.conftest import Gateway, ServeGateway
from tests.gateway.fakes import MODEL, FakeDispatcher
from tests.gateway.talk import PATHS, body_for
from tests.support import wait_until

SECRET = "sk-5f3a"


def key(name: str = "web", secret: str = SECRET, **limits: object) -> ApiKey:
    return ApiKey(name=name, digest=hashlib.sha256(secret.encode()).digest(), tenant="acme", **limits)  # type: ignore[arg-type]


def keys(*known: ApiKey) -> ApiKeys:
    return ApiKeys(lambda: known)


def shown(secret: str = SECRET) -> dict[str, str]:
    return {"Authorization": f"Bearer {secret}"}


def test_an_open_gateway_knows_nobody_and_asks_nobody() -> None:
    """A laptop needs no keys; whatever a client shows there is not looked at."""
    assert ApiKeys().identify() is ANYBODY
    assert ApiKeys().identify("Bearer whatever") is ANYBODY
    assert ANYBODY.tenant == ""
    assert ANYBODY.clamp(INTERACTIVE) is INTERACTIVE


@pytest.mark.parametrize("header", [f"Bearer {SECRET}", f"bearer {SECRET}", f"  BEARER   {SECRET} "])
def test_a_known_key_names_its_tenant(header: str) -> None:
    """The scheme is not case-sensitive, the key is."""
    assert keys(key("other", "sk-other"), key()).identify(header).tenant == "acme"


@pytest.mark.parametrize(
    "header", ["", "Bearer", "Bearer ", SECRET, f"Basic {SECRET}", f"Bearer {SECRET.upper()}", "Bearer \udcff"]
)
def test_anything_else_is_refused(header: str) -> None:
    """Without saying more than that."""
    with pytest.raises(Refused) as refused:
        keys(key()).identify(header)
    assert refused.value.reason is Reason.INVALID_API_KEY
    assert SECRET.lower() not in refused.value.message.lower()


def test_every_key_is_compared_whichever_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopping at the first that fits would tell by its time which one that was."""
    compared: list[bytes] = []

    def compare(left: bytes, right: bytes) -> bool:
        compared.append(left)
        return left == right

    monkeypatch.setattr("gateway.api_keys.hmac.compare_digest", compare)
    known = [key(f"k{number}", f"sk-{number}") for number in range(5)]
    assert keys(*known).identify("Bearer sk-0").key == known[0]
    assert compared == [each.digest for each in known]


def test_a_class_above_the_ceiling_is_clamped() -> None:
    """A better one than allowed becomes the best allowed; a lesser one stays."""
    caller = Caller(key=key(ceiling=STANDARD))
    assert [caller.clamp(cls) for cls in (INTERACTIVE, STANDARD, BATCH)] == [STANDARD, STANDARD, BATCH]


def test_a_bad_reload_keeps_the_old_keys_and_says_so() -> None:
    """A typing error must neither lock everybody out nor let everybody in."""
    answers: list[Sequence[ApiKey] | ValueError] = [
        [key()],
        ValueError("web.sha256: is required"),
        [key("new", "sk-2")],
    ]

    def load() -> Sequence[ApiKey]:
        answer = answers.pop(0)
        if isinstance(answer, ValueError):
            raise answer
        return answer

    known = ApiKeys(load)
    with capture_logs() as logs:
        known.reload()
        assert known.identify(f"Bearer {SECRET}").tenant == "acme"
        known.reload()
    assert [(line["log_level"], line.get("reason"), line.get("keys")) for line in logs] == [
        ("error", "web.sha256: is required", None),
        ("info", None, 1),
    ]
    with pytest.raises(Refused):
        known.identify(f"Bearer {SECRET}")
    assert known.identify("Bearer sk-2").key == key("new", "sk-2")


def test_requests_that_are_open_count_across_a_reload() -> None:
    """Reading the file again must not give anybody a second share."""
    known = keys(key(max_concurrent=1))
    caller = known.identify(f"Bearer {SECRET}")
    with known.admitted(caller):
        known.reload()
        with pytest.raises(Refused) as refused, known.admitted(known.identify(f"Bearer {SECRET}")):
            pass
    assert refused.value.reason is Reason.TENANT_LIMIT
    with known.admitted(caller):
        pass
    assert known.num_open == 0


def test_who_has_too_many_is_told_when_one_may_end() -> None:
    """Four that took 40 s each, begun at different times: the next ends in about ten."""
    now_us = [0]
    known = ApiKeys(lambda: [key(max_concurrent=4)], clock=lambda: now_us[0])
    caller = known.identify(f"Bearer {SECRET}")
    with known.admitted(caller):
        now_us[0] += 40_000_000
    with ExitStack() as four:
        for _ in range(4):
            four.enter_context(known.admitted(caller))
        with pytest.raises(Refused) as refused, known.admitted(caller):
            pass
    assert refused.value.retry_after_s is not None
    assert 10 <= refused.value.retry_after_s <= 10 + LEAST_SPREAD_S


@pytest.mark.parametrize("path", PATHS)
async def test_without_a_key_nothing_is_read_or_queued(serve: ServeGateway, path: str) -> None:
    """Refusing strangers costs next to nothing, in OpenAI's shape."""
    gateway = await serve(keys=keys(key()))
    reply = await gateway.post(path, b"not even JSON", headers=shown("sk-wrong"))
    assert (reply.status, reply.error["code"], reply.error["type"]) == (401, "invalid_api_key", "authentication_error")
    assert reply.headers["WWW-Authenticate"] == "Bearer"
    assert gateway.outcome("invalid_api_key") == 1
    accepted = await gateway.post(path, body_for(path), headers=shown())
    assert accepted.status == 200
    assert gateway.dispatcher.last.request.tenant == "acme"


async def test_the_official_sdk_shows_its_key(serve: ServeGateway) -> None:
    """And raises what its users catch."""
    gateway = await serve(keys=keys(key()))
    with pytest.raises(openai.AuthenticationError):
        await gateway.sdk.models.list()
    assert (await gateway.sdk.with_options(api_key=SECRET).models.list()).data[0].id == MODEL
    answer = await gateway.sdk.with_options(api_key=SECRET).completions.create(model=MODEL, prompt="Hi")
    assert answer.choices[0].text == "Hello world"


async def test_health_needs_no_key_and_metrics_do(serve: ServeGateway) -> None:
    """A balancer has none; how busy everybody is is nobody else's business."""
    gateway = await serve(keys=keys(key()))
    for path, status in [("/livez", 200), ("/readyz", 200), ("/metrics", 401), ("/v1/models", 401)]:
        async with gateway.http.get(path) as response:
            assert response.status == status, path
    async with gateway.http.get("/metrics", headers=shown()) as response:
        assert response.status == 200


async def test_metrics_that_have_an_address_of_their_own_are_not_beside_the_api(serve: ServeGateway) -> None:
    """Moved means gone from where clients can reach it."""
    gateway = await serve(metrics_at=MetricsAt.ADMIN)
    async with gateway.http.get("/metrics") as response:
        assert response.status == 404


async def test_an_answer_says_that_its_class_was_clamped(serve: ServeGateway) -> None:
    """Nobody should have to wonder why it is slow."""
    gateway = await serve(keys=keys(key(ceiling=STANDARD)))
    headers = shown() | {CLASS_CHOICE_HEADER: "interactive"}
    reply = await gateway.post(PATHS[0], body_for(PATHS[0]), headers=headers)
    assert reply.headers["x-sluicegate-class"] == "standard"
    assert reply.headers["x-sluicegate-class-clamped"] == "interactive"
    assert reply.json["service_tier"] == "default"
    assert gateway.dispatcher.last.request.class_name == "standard"
    reply = await gateway.post(PATHS[0], body_for(PATHS[0]), headers=shown())
    assert "x-sluicegate-class-clamped" not in reply.headers


async def test_a_key_has_at_most_its_share_at_once(serve: ServeGateway) -> None:
    """Beyond it 429; others are not touched, and an ended request makes room, however it ended."""
    known = keys(key(max_concurrent=2), key("other", "sk-other"))
    gateway = await serve(FakeDispatcher(hold_submit=asyncio.Event()), keys=known)

    async def ask(secret: str) -> int:
        return (await gateway.post(PATHS[0], body_for(PATHS[0]), headers=shown(secret))).status

    held = [asyncio.create_task(ask(SECRET)) for _ in range(2)]
    await wait_until(lambda: gateway.num_open == 2, "both are open")
    reply = await gateway.post(PATHS[0], body_for(PATHS[0]), headers=shown())
    assert (reply.status, reply.error["code"]) == (429, "tenant_limit")
    assert "Retry-After" in reply.headers
    held[0].cancel()
    await wait_until(lambda: gateway.num_open == 1, "one has left")
    others = [asyncio.create_task(ask(secret)) for secret in (SECRET, "sk-other", "sk-other")]
    await wait_until(lambda: gateway.num_open == 4, "there is room again, and no limit for the other")
    assert gateway.dispatcher.hold_submit is not None
    gateway.dispatcher.hold_submit.set()
    assert await asyncio.gather(held[1], *others) == [200] * 4
    await wait_until(lambda: known.num_open == 0, "nothing is counted any more")


async def test_the_log_names_the_tenant_and_never_the_key(serve: ServeGateway) -> None:
    """Logs are read by many."""
    gateway = await serve(keys=keys(key()))
    with capture_logs() as logs:
        await gateway.post(PATHS[0], body_for(PATHS[0]), headers=shown())
        await gateway.post(PATHS[0], body_for(PATHS[0]), headers=shown("sk-wrong"))
    assert [line["tenant"] for line in logs] == ["acme", None]
    assert "sk-" not in str(logs)


async def test_an_open_gateway_serves_whoever_comes(gateway: Gateway) -> None:
    """With a key or without."""
    assert (await gateway.post(PATHS[0], body_for(PATHS[0]), headers=shown("anything"))).status == 200
    assert gateway.dispatcher.last.request.tenant == ""
