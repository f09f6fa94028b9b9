"""The fleet: which processes with which flags."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

import pytest

from gateway import fleet
from gateway.fleet import MAX_RUN_DIR_BYTES, build_fleet, gateway_spec, run_directory, worker_spec
from gateway.settings import GatewaySettings, UpSettings

RUN = Path("/run/x")


def up(*argv: str) -> UpSettings:
    return UpSettings.load(argv)


def test_a_gateway_understands_the_flags_that_it_is_given() -> None:
    """Both sides of this seam are ours, and an unknown flag would end every start."""
    settings = up("--gateways", "2", "--workers", "2", "--port", "9000", "--queue-requests", "8", "--drain-s", "2.5")

    spec = gateway_spec(settings, RUN, "unix:///run/x/redis.sock", 1)
    words = spec.argv[spec.argv.index("gateway", 3) + 1 :]
    gateway = GatewaySettings.load(words)

    assert (gateway.host, gateway.port, gateway.queue_requests) == ("127.0.0.1", 9001, 8)
    assert gateway.worker == ("unix:/run/x/w0.sock", "unix:/run/x/w1.sock")
    assert gateway.relay == "unix:/run/x/g1.sock"
    assert gateway.redis == "unix:///run/x/redis.sock"
    assert spec.stop_grace_s > gateway.drain_s


def test_a_gateway_gets_the_rule_and_its_batch_sizes() -> None:
    """A rule that stays with `up` is not in force anywhere; lists travel as one text."""
    settings = up("--preset", "request-dynamic", "--preferred-sizes", "2,4", "--max-queue-delay-ms", "20")

    spec = gateway_spec(settings, RUN, "unix:///run/x/redis.sock", 0)
    gateway = GatewaySettings.load(spec.argv[spec.argv.index("gateway", 3) + 1 :])

    assert (gateway.preset, gateway.preferred_sizes, gateway.max_queue_delay_ms) == ("request-dynamic", (2, 4), 20)


def test_a_gateway_gets_the_classes_and_their_order() -> None:
    """They share one queue with the others, so all need the same."""
    settings = up("--classes", "deploy/classes.toml", "--waiting-order", "least-served")

    spec = gateway_spec(settings, RUN, "unix:///run/x/redis.sock", 0)
    gateway = GatewaySettings.load(spec.argv[spec.argv.index("gateway", 3) + 1 :])

    assert (gateway.classes, gateway.waiting_order) == (Path("deploy/classes.toml"), "least-served")


def test_a_gateway_gets_every_bound_of_the_queue() -> None:
    """A bound that only one of several gateways keeps bounds nothing."""
    settings = up("--queue-requests", "9", "--queue-tokens", "9000", "--queue-bytes", "90000")

    spec = gateway_spec(settings, RUN, "unix:///run/x/redis.sock", 0)
    gateway = GatewaySettings.load(spec.argv[spec.argv.index("gateway", 3) + 1 :])

    assert (gateway.queue_requests, gateway.queue_tokens, gateway.queue_bytes) == (9, 9_000, 90_000)


@pytest.mark.parametrize("host", ["vm", "a host / of \u00fcs", "h" * 300])
def test_a_gateway_has_the_same_id_at_every_start(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the bound on what it records would begin anew with each process, and the disk fill up with old logs."""
    monkeypatch.setattr(fleet, "gethostname", lambda: host)
    ids = []
    for index in (0, 1, 0):
        spec = gateway_spec(up(), RUN, "unix:///run/x/redis.sock", index)
        ids.append(GatewaySettings.load(spec.argv[4:]).gateway_id)
    assert ids[0] == ids[2] != ids[1]


def test_a_worker_gets_what_was_set_and_nothing_else() -> None:
    """Its own defaults stay its own."""
    settings = up("--model", "some/model", "--max-slots", "4", "--threads", "2", "--swap-mib", "64")
    words = worker_spec(settings, RUN, 0).argv
    flags = dict(zip(words[3::2], words[4::2], strict=True))

    assert flags == {
        "--listen": "unix:/run/x/w0.sock",
        "--model": "some/model",
        "--device": "auto",
        "--dtype": "auto",
        "--forward": "auto",
        "--max-slots": "4",
        "--swap-mib": "64",
        "--threads": "2",
    }


def test_a_switch_is_passed_on_by_its_name() -> None:
    """It takes no value, and one that is off says nothing."""
    assert "--deterministic" in worker_spec(up("--deterministic"), RUN, 0).argv
    assert "--deterministic" not in worker_spec(up(), RUN, 0).argv


def test_a_fake_worker_gets_its_script_and_no_model() -> None:
    """A script has no device."""
    words = worker_spec(up("--fake-worker", '{"slots": 9}', "--kv-blocks", "9"), RUN, 0).argv
    assert dict(zip(words[3::2], words[4::2], strict=True)) == {
        "--listen": "unix:/run/x/w0.sock",
        "--fake-worker": '{"slots": 9}',
        "--kv-blocks": "9",
    }


def test_settings_of_up_are_not_inherited(monkeypatch: pytest.MonkeyPatch) -> None:
    """SLUICEGATE_WORKERS means nothing to a gateway, which would refuse to start."""
    monkeypatch.setenv("SLUICEGATE_WORKERS", "2")
    assert not any(name.startswith("SLUICEGATE_") for name in worker_spec(up(), RUN, 0).env)


def test_an_outside_redis_replaces_the_embedded_one() -> None:
    """Several machines share one queue."""
    fleet = build_fleet(up("--redis", "redis://elsewhere:6379"), RUN, print)
    assert fleet.redis is None
    assert "redis://elsewhere:6379" in gateway_spec(up(), RUN, "redis://elsewhere:6379", 0).argv


def test_gateways_stop_before_workers_and_redis_last() -> None:
    """A stream that drains needs its worker, and its bookkeeping needs Redis."""
    fleet = build_fleet(up("--gateways", "2"), RUN, print)
    assert [service.name for service in fleet.services] == ["gateway 0", "gateway 1", "worker 0", "redis"]


def test_the_run_directory_is_private_and_goes_away() -> None:
    """Whoever can enter it can talk to the workers without a secret."""
    with run_directory() as path:
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
        (path / "w0.sock").touch()
    assert not path.exists()


def test_the_run_directory_is_short_enough_for_a_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Unix socket's path ends at 107 bytes, and temporary directories can be long."""
    long = tmp_path / ("x" * MAX_RUN_DIR_BYTES)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    with run_directory() as path:
        assert len(os.fsencode(path)) <= MAX_RUN_DIR_BYTES
