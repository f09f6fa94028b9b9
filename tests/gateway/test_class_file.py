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


def problem(tmp_path: Path, content: str) -> str:
    """What reading a file of this content says."""
    file = tmp_path / "classes.toml"
    file.write_text(content)
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
        ("share-percent = 101", "only.share-percent"),
        ("max-waiting = -1", "only.max-waiting"),
        ("max-waiting-tokens = 1e9", "only.max-waiting-tokens"),
        ("sheds = 1", "only.sheds"),
        ('preemptible = "no"', "only.preemptible"),
        ('sheddable = "no"', "only.sheddable"),
        ("weight = 3", "only.weight: is not a known field"),
    ],
)
def test_a_wrong_field_is_named(tmp_path: Path, line: str, place: str) -> None:
    """A class that is not as meant serves well enough to go unnoticed."""
    key = line.partition(" ")[0]
    kept = [other for other in ONLY.splitlines() if not other.startswith(key)]
    assert problem(tmp_path, "\n".join([*kept, line])).startswith(place)


def test_a_file_in_which_a_request_could_lose_its_way_says_why(tmp_path: Path) -> None:
    """Each field may be good, and the table as a whole not."""
    assert "only.max-priority: the class of the greatest rank" in problem(tmp_path, ONLY + "max-priority = 5\n")
    assert "service tier" in problem(tmp_path, ONLY.replace("default", "flex"))
    assert "no other bound" in problem(tmp_path, ONLY + "no-queue = true\nmax-waiting = 5\n")
    shares = ONLY.replace("[only]", "[first]") + "share-percent = 60\nmax-priority = 1\n"
    assert "100 percent" in problem(tmp_path, shares + ONLY.replace("rank = 0", "rank = 1") + "share-percent = 60\n")
    many = "".join(f"[c{number}]\n" for number in range(MOST_CLASSES + 1))
    assert problem(tmp_path, many) == "has 17 tables; there may be 1 to 16"


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
