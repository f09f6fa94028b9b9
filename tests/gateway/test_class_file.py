"""Classes from a file: all that is wrong is named, with its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from admission.classes import DEFAULT_CLASSES, PriorityClass
from gateway.class_file import MOST_CLASSES, read_classes
from gateway.settings import GatewaySettings
from gateway.settings_sources import BadSettings

EXAMPLE = Path(__file__).parents[2] / "deploy" / "classes.toml"
ONLY = '[only]\nrank = 0\nservice-tier = "default"\n'


def problem(tmp_path: Path, content: str | bytes) -> str:
    """What reading a file of this content says."""
    file = tmp_path / "classes.toml"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ValueError, match=r"\w") as raised:
        read_classes(file)
    return str(raised.value)


def test_the_example_is_the_default() -> None:
    """A file to start from must change nothing by itself."""
    assert tuple(read_classes(EXAMPLE)) == tuple(read_classes(None)) == DEFAULT_CLASSES


def test_a_file_is_the_whole_list(tmp_path: Path) -> None:
    """Nobody has to guess which defaults are still in force."""
    file = tmp_path / "classes.toml"
    file.write_text(ONLY + "head_start_s = 1.5\ndeadline-ms = 2000\n")
    assert tuple(read_classes(file)) == (
        PriorityClass(
            name="only", rank=0, head_start_us=1_500_000, service_tier="default", default_deadline_us=2_000_000
        ),
    )


@pytest.mark.parametrize(
    ("line", "place"),
    [
        ("rank = -1", "only.rank"),
        ("rank = 99", "only.rank"),
        ('rank = "first"', "only.rank"),
        ("rank = true", "only.rank"),
        ('service-tier = "scale"', "only.service-tier"),
        ("head-start-s = -1", "only.head-start-s"),
        ("head-start-s = nan", "only.head-start-s"),
        ("max-priority = 0.5", "only.max-priority"),
        ("deadline-ms = 0", "only.deadline-ms"),
        ("weight = 3", "only.weight: is not a known field"),
    ],
)
def test_a_wrong_field_is_named(tmp_path: Path, line: str, place: str) -> None:
    """A class that is not as meant serves well enough to go unnoticed."""
    key = line.partition(" ")[0]
    kept = [other for other in ONLY.splitlines() if not other.startswith(key)]
    assert problem(tmp_path, "\n".join([*kept, line])).startswith(place)


def test_a_missing_field_is_named(tmp_path: Path) -> None:
    """And so is everything else that is wrong, at once."""
    text = problem(tmp_path, '[a]\nservice-tier = "default"\n[b]\nrank = 1\n')
    assert text == "a.rank: is required; b.service-tier: is required"


@pytest.mark.parametrize("name", ['""', '"Upper"', '"a b"', '"7up"', f'"{"x" * 33}"', '"a:b"'])
def test_a_name_that_cannot_be_a_label_is_refused(tmp_path: Path, name: str) -> None:
    """It stands in headers, in metrics and in keys of the store."""
    assert "is no name" in problem(tmp_path, ONLY.replace("[only]", f"[{name}]"))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "has 0 tables"),
        ("".join(f"[c{number}]\n" for number in range(MOST_CLASSES + 1)), "has 17 tables"),
        ("only = 5", "should be a table"),
        ("[only", "is not valid TOML"),
        (b"\xff", "is not valid TOML"),
        (ONLY + "max-priority = 5\n", "max priorities"),
        (ONLY.replace("default", "flex"), "service tier"),
    ],
)
def test_a_file_without_a_usable_table_says_why(tmp_path: Path, content: str | bytes, words: str) -> None:
    """A sentence, not a traceback."""
    assert words in problem(tmp_path, content)


def test_a_bad_file_is_a_bad_setting(tmp_path: Path) -> None:
    """Exit code 2 before anything starts, also for `up`, which only hands the path on."""
    with pytest.raises(BadSettings) as refused:
        GatewaySettings.load(["--classes", str(tmp_path / "none.toml")])
    assert refused.value.lines[0].startswith("--classes: cannot be read: No such file")
    file = tmp_path / "classes.toml"
    file.write_text(ONLY.replace("rank = 0", "rank = 0.5"))
    with pytest.raises(BadSettings) as refused:
        GatewaySettings.load(["--classes", str(file)])
    assert refused.value.lines[0].startswith("--classes: only.rank: ")
