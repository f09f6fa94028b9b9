"""The probe: what `up` can know of its gateways from outside."""

from __future__ import annotations

import socket
from pathlib import Path

from aiohttp import web
from aiohttp.test_utils import TestServer

from gateway.probe import Probe, first_unusable_port, redis_problem
from gateway.redis_server import RedisServer


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def test_a_taken_port_is_a_sentence() -> None:
    """It is found before a model is loaded for nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        problem = first_unusable_port("127.0.0.1", [port])
    assert problem == f"cannot listen on port {port} of 127.0.0.1: address already in use"


def test_a_free_port_and_no_port_are_no_problem() -> None:
    """The trial itself must leave the port free."""
    port = free_port()
    assert first_unusable_port("127.0.0.1", [port]) is None
    assert first_unusable_port("127.0.0.1", [port]) is None


def test_an_address_of_another_machine_is_a_sentence() -> None:
    """The same for a host that is not ours."""
    problem = first_unusable_port("192.0.2.1", [80])
    assert problem is not None
    assert problem.startswith("cannot listen on port 80 of 192.0.2.1: ")


async def test_ready_means_that_every_gateway_says_so() -> None:
    """The address is printed once, so all of them must work by then."""
    status = 503

    async def readyz(_request: web.Request) -> web.Response:
        return web.Response(status=status)

    app = web.Application()
    app.router.add_get("/readyz", readyz)
    async with TestServer(app) as server, Probe("127.0.0.1", [server.port or 0]) as probe:
        assert not await probe.all_ready()
        status = 200
        assert await probe.all_ready()


async def test_nobody_listening_is_not_ready_and_has_no_model() -> None:
    """That is how every start begins."""
    async with Probe("127.0.0.1", [free_port()]) as probe:
        assert not await probe.all_ready()
        assert await probe.model() is None


async def test_a_gateway_on_every_address_is_asked_on_the_loopback() -> None:
    """0.0.0.0 is an address to listen on, not one to connect to or to print in a curl line."""
    async with Probe("0.0.0.0", [8080]) as four, Probe("::", [8080]) as six:
        assert four.addresses == ["http://127.0.0.1:8080"]
        assert six.addresses == ["http://[::1]:8080"]


async def test_a_redis_that_is_not_there_is_a_sentence(run_dir: Path, redis_server: RedisServer) -> None:
    """Otherwise `up` would load a model and then wait for a store that never comes."""
    problem = await redis_problem(f"unix://{run_dir}/none.sock")
    assert problem is not None
    assert problem.startswith("--redis cannot be used: ")
    assert await redis_problem(redis_server.url) is None
