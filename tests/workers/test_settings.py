"""A worker's settings: where they come from, and that nothing unknown is taken for one."""

from __future__ import annotations

from pathlib import Path

import pytest

from workers.settings import BadSettings, WorkerSettings
from workers.wire import TcpAddress, UnixAddress


@pytest.fixture(autouse=True)
def _no_outside_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the shell that runs the tests has set is not part of them."""
    import os  # noqa: PLC0415 -- only to read the names

    for name in [name for name in os.environ if name.startswith("SLUICEGATE_")]:
        monkeypatch.delenv(name)


def test_the_defaults_need_nothing() -> None:
    """``sluicegate worker`` alone serves the default model."""
    settings = WorkerSettings.load([])
    assert settings.max_slots == 32
    assert settings.block_size == 16
    assert settings.model is None
    assert isinstance(settings.address, UnixAddress)


def test_a_flag_counts_more_than_the_environment_and_that_more_than_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The nearer to the person who types, the stronger."""
    file = tmp_path / "worker.toml"
    file.write_text('max-slots = 1\nkv_blocks = 1\nblock-size = 1\ndtype = "bfloat16"\n')
    monkeypatch.setenv("SLUICEGATE_MAX_SLOTS", "2")
    monkeypatch.setenv("SLUICEGATE_KV_BLOCKS", "2")
    settings = WorkerSettings.load(["--config", str(file), "--max-slots", "3"])
    assert (settings.max_slots, settings.kv_blocks, settings.block_size, settings.dtype) == (3, 2, 1, "bfloat16")


def test_an_unknown_flag_is_named() -> None:
    """A misspelt limit would be no limit."""
    with pytest.raises(BadSettings, match="--max-slot"):
        WorkerSettings.load(["--max-slotz", "3"])


def test_an_unknown_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when every other one is right."""
    monkeypatch.setenv("SLUICEGATE_MAX_SLOTZ", "3")
    with pytest.raises(BadSettings, match="unknown setting in the environment: SLUICEGATE_MAX_SLOTZ"):
        WorkerSettings.load([])


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("max-slotz = 3", "unknown setting in .*worker.toml: max-slotz"),
        ('config = "other.toml"', "unknown setting in .*worker.toml: config"),
        ("max-slots = 3\nmax_slots = 4", "gives a setting twice"),
        ("max-slots =", "is not valid TOML"),
        ('max-slots = "many"', r"--max-slots: Input should be a valid integer.*'many'"),
    ],
)
def test_a_wrong_file_is_refused_with_a_sentence(tmp_path: Path, content: str, sentence: str) -> None:
    """One that names what to mend."""
    file = tmp_path / "worker.toml"
    file.write_text(content)
    with pytest.raises(BadSettings, match=sentence):
        WorkerSettings.load(["--config", str(file)])


def test_a_missing_file_is_refused_with_a_sentence() -> None:
    """Not silently passed over."""
    with pytest.raises(BadSettings, match="cannot read the settings file /no/such"):
        WorkerSettings.load(["--config", "/no/such/worker.toml"])


@pytest.mark.parametrize("listen", ["tcp:0.0.0.0:9000", "tcp:worker.example:9000", "tcp:[::]:9000"])
def test_listening_beyond_this_machine_needs_a_secret(listen: str, tmp_path: Path) -> None:
    """F03: whoever can connect can run plans."""
    with pytest.raises(BadSettings, match="beyond this machine, needs --secret-file"):
        WorkerSettings.load(["--listen", listen])
    secret = tmp_path / "secret"
    secret.write_text("open sesame\n")
    settings = WorkerSettings.load(["--listen", listen, "--secret-file", str(secret)])
    assert settings.read_secret() == b"open sesame"


def test_loopback_needs_no_secret() -> None:
    """One machine, one user, by default."""
    settings = WorkerSettings.load(["--listen", "tcp:127.0.0.1:9000"])
    assert settings.address == TcpAddress("127.0.0.1", 9000)
    assert settings.read_secret() == b""


@pytest.mark.parametrize(("content", "sentence"), [(None, "cannot read the secret file"), (" \n", "is empty")])
def test_a_secret_that_is_none_is_refused(tmp_path: Path, content: str | None, sentence: str) -> None:
    """An empty secret is what every stranger knows."""
    file = tmp_path / "secret"
    if content is not None:
        file.write_text(content)
    with pytest.raises(BadSettings, match=sentence):
        WorkerSettings.load(["--secret-file", str(file)]).read_secret()


def test_a_script_and_a_model_exclude_each_other() -> None:
    """One of them would be ignored."""
    with pytest.raises(BadSettings, match="give it or --model, not both"):
        WorkerSettings.load(["--fake-worker", "default", "--model", "some/model"])
