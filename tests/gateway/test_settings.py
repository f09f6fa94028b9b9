"""Settings: four spellings of one name, one line for each mistake."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from admission.standing import WaitingOrderName
from gateway.settings import GatewaySettings, UpSettings
from gateway.settings_sources import BadSettings, CommandSettings, environment_without_settings


@pytest.fixture(autouse=True)
def _no_inherited_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.upper().startswith("SLUICEGATE_"):
            monkeypatch.delenv(name)


def mistakes(cls: type[CommandSettings], *argv: str) -> tuple[str, ...]:
    with pytest.raises(BadSettings) as caught:
        cls.load(argv)
    return caught.value.lines


def test_a_flag_beats_the_environment_which_beats_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Operators override the file per host and the host per run, never the other way round."""
    file = tmp_path / "up.toml"
    file.write_text("port = 1001\nworkers = 2\nmax-slots = 3\n")
    monkeypatch.setenv("SLUICEGATE_PORT", "1002")
    monkeypatch.setenv("SLUICEGATE_WORKERS", "4")

    settings = UpSettings.load(["--config", str(file), "--port", "1003"])

    assert (settings.port, settings.workers, settings.max_slots, settings.gateways) == (1003, 4, 3, 1)


def test_the_file_may_be_named_by_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A container is configured without changing its command."""
    file = tmp_path / "up.toml"
    file.write_text("max_slots = 3\n")
    monkeypatch.setenv("SLUICEGATE_CONFIG", str(file))

    assert UpSettings.load([]).max_slots == 3


def test_an_unknown_flag_is_named() -> None:
    """A misspelt limit must not leave the default in force silently."""
    assert mistakes(UpSettings, "--queue-request", "8") == ("unrecognized arguments: --queue-request 8",)


def test_an_unknown_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same for the environment, where libraries commonly ignore what they do not know."""
    monkeypatch.setenv("SLUICEGATE_QUEUE_REQUEST", "8")
    assert mistakes(UpSettings) == ("unknown setting in the environment: SLUICEGATE_QUEUE_REQUEST",)


def test_an_unknown_key_of_the_file_is_named(tmp_path: Path) -> None:
    """The same for the file, with its path, since there may be several."""
    file = tmp_path / "up.toml"
    file.write_text("queue-request = 8\n")
    assert mistakes(UpSettings, f"--config={file}") == (f"unknown setting in {file}: queue-request",)


def test_a_key_spelt_both_ways_in_one_file_is_refused(tmp_path: Path) -> None:
    """Which of two values counts is not for us to guess."""
    file = tmp_path / "up.toml"
    file.write_text("max-slots = 8\nmax_slots = 9\n")
    assert mistakes(UpSettings, f"--config={file}") == (f"setting given twice in {file}: max_slots",)


@pytest.mark.parametrize("content", ["port = ", b"\xff"], ids=["not TOML", "not text"])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, content: str | bytes) -> None:
    """A broken file is a sentence, not a traceback."""
    file = tmp_path / "up.toml"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    (line,) = mistakes(UpSettings, f"--config={file}")
    assert str(file) in line


def test_each_bad_value_is_one_line_that_names_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All mistakes at once, each where the operator can mend it."""
    file = tmp_path / "up.toml"
    file.write_text("workers = 0\n")
    monkeypatch.setenv("SLUICEGATE_DEVICE", "tpu")

    lines = mistakes(UpSettings, "--config", str(file), "--port", "eighty")

    assert {line.split(":")[0] for line in lines} == {"--port", "SLUICEGATE_DEVICE", f"workers in {file}"}


def test_a_redis_url_is_not_repeated_in_an_error() -> None:
    """It may carry a password, and errors go to logs."""
    lines = mistakes(GatewaySettings, "--redis", "http://:secret@host")
    assert lines == ("--redis: must be a URL that begins with redis://, rediss:// or unix://",)


def test_the_ports_of_all_gateways_must_exist() -> None:
    """Gateways listen on consecutive ports; the last one counts too."""
    assert "consecutive ports" in mistakes(UpSettings, "--port", "65535", "--gateways", "2")[0]


def test_worker_addresses_are_repeated_or_separated_by_commas(monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable holds one text, so a list needs a separator there."""
    flags = GatewaySettings.load(["--worker", "unix:/a,unix:/b", "--worker", "tcp:c:1"])
    monkeypatch.setenv("SLUICEGATE_WORKER", "unix:/a, unix:/b")

    assert flags.worker == ("unix:/a", "unix:/b", "tcp:c:1")
    assert GatewaySettings.load([]).worker == ("unix:/a", "unix:/b")


def test_an_empty_variable_counts_as_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compose files hand on unset variables as empty ones."""
    monkeypatch.setenv("SLUICEGATE_KV_BLOCKS", "")
    assert GatewaySettings.load([]).kv_blocks is None


def test_children_do_not_inherit_settings() -> None:
    """They get everything as flags; a setting of `up` is unknown to its gateways."""
    assert environment_without_settings({"PATH": "/bin", "SLUICEGATE_WORKERS": "2"}) == {"PATH": "/bin"}


def test_more_slots_than_the_token_budget_are_refused() -> None:
    """Every slot decodes in every iteration; such limits could never run."""
    for kind in (UpSettings, GatewaySettings):
        with pytest.raises(BadSettings) as refused:
            kind.load(["--max-slots", "8", "--token-budget", "4"])
        assert "--max-slots 8 is more than --token-budget 4" in refused.value.lines[0]


def test_an_unknown_preset_is_refused_with_the_known_ones() -> None:
    """Their names are not guessable, and a gateway with another rule than meant serves well enough to go unnoticed."""
    (line,) = mistakes(UpSettings, "--preset", "fifo")
    assert line.startswith("--preset: ")
    assert "sluicegate" in line


def test_an_unknown_waiting_order_is_refused_with_the_known_ones() -> None:
    """All gateways sort one queue."""
    (line,) = mistakes(UpSettings, "--waiting-order", "lifo")
    assert line.startswith("--waiting-order: ")
    assert "least-served" in line
    assert GatewaySettings.load(["--waiting-order", "edf"]).waiting_order == "edf"


def test_help_shows_values_as_they_are_written(capsys: pytest.CaptureFixture[str]) -> None:
    """Who copies the name of an enum's member instead is refused."""
    with pytest.raises(SystemExit):
        UpSettings.load(["--help"])
    assert f"--waiting-order {{{','.join(WaitingOrderName)}}}" in capsys.readouterr().out


def test_a_script_that_is_not_there_is_refused_before_anything_starts(tmp_path: Path) -> None:
    """Else it is a worker that ends some seconds later, among what else is starting."""
    missing = tmp_path / "script.json"
    (line,) = mistakes(UpSettings, "--fake-worker", str(missing))
    assert line.startswith("--fake-worker: there is no such file")
    missing.write_text("{}")
    for source in ("default", '{"slots": 2}', str(missing)):
        assert UpSettings.load(["--fake-worker", source]).fake_worker == source


def test_batch_sizes_are_whole_numbers_above_zero() -> None:
    """A batch of nobody never starts."""
    assert UpSettings.load(["--preferred-sizes", "4, 8"]).preferred_sizes == (4, 8)
    for text in ("0", "4,x"):
        (line,) = mistakes(UpSettings, "--preferred-sizes", text)
        assert line.startswith("--preferred-sizes")


def test_an_address_that_is_none_is_refused() -> None:
    """Both words of the wire's addresses are easily forgotten."""
    lines = mistakes(GatewaySettings, "--worker", "unix:/a,localhost:9001", "--relay", "9080")
    assert [line.split(":")[0] for line in lines] == ["--worker", "--relay"]


@pytest.mark.parametrize("address", ["9090", "localhost", "localhost:http", "unix:/a"])
def test_an_admin_address_is_a_host_and_a_port(address: str) -> None:
    """One that is not would be found out only when somebody looks for the metrics."""
    assert mistakes(GatewaySettings, "--admin", address) == (f"--admin: must be HOST:PORT (got {address!r})",)
    assert GatewaySettings.load(["--admin", "[::1]:9090"]).admin == "[::1]:9090"


def test_a_relay_beyond_this_machine_needs_a_secret() -> None:
    """Whoever reaches it could put words into other people's answers."""
    assert "--secret-file" in mistakes(GatewaySettings, "--relay", "tcp:gateway-1:9080")[0]
    assert GatewaySettings.load(["--relay", "tcp:gateway-1:9080", "--secret-file", "/run/secret"]).relay
