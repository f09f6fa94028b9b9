"""The command writes pictures that need nothing else."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from gateway.simulate_command import simulate_main
from gateway.trace_command import trace_main
from tests.admission.record.test_perfetto import check_trace
from tests.gateway.logs_on_disk import flip, simulate_baseline, write_recording

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return simulate_baseline(tmp_path / "logs")


def data_of(page: str) -> dict[str, object]:
    found = re.search(r'<script id="data" type="application/json">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    data: dict[str, object] = json.loads(found[1])
    return data


def test_a_perfetto_file_is_in_the_trace_format(folder: Path, tmp_path: Path) -> None:
    """With the names that clients know."""
    out = tmp_path / "out.json"
    assert trace_main([str(folder), "--perfetto", str(out)]) == 0
    document = json.loads(out.read_bytes())
    check_trace(document)
    assert {event["name"] for event in document["traceEvents"] if event["ph"] == "X"} == {"A", "B", "C", "D", "E"}


def test_a_page_is_one_file_with_everything_in_it(folder: Path, tmp_path: Path) -> None:
    """It is sent by mail, and opened without a network."""
    out = tmp_path / "out.html"
    assert trace_main([str(folder), "--html", str(out)]) == 0
    page = out.read_text()
    assert "http://" not in page.replace("http://www.w3.org/", "")
    assert "https://" not in page
    assert not re.search(r"<(link|img|script)[^>]+(src|href)=", page)
    for mark in ("/*CSS*/", "/*JS*/", "/*DATA*/"):
        assert mark not in page
    data = data_of(page)
    assert data["bound"] == 2
    assert data["facts"] == "1 driver · 6 iterations · 1 refused · 1 preemption"
    sequences = data["sequences"]
    assert isinstance(sequences, list)
    assert [row["name"] for row in sequences] == ["A", "B", "C", "D", "E", "F"]
    assert ["iteration 3", "resumed in slot 1, with 3 prompt tokens kept"] in sequences[0]["lines"]


@pytest.mark.parametrize("name", ["</script><b>", "<!--<script>", "<!-- <SCRIPT x"])
def test_a_name_from_a_log_is_nothing_to_the_browser(name: str, tmp_path: Path) -> None:
    """A request's name is data, whoever chose it. A comment that opens a script hides the end of the element."""
    scenario = {
        "policy": {"max_active": 1, "max_queue": 1, "token_budget": 4, "prefill_chunk": 4},
        "requests": [{"id": name, "arrival": 0, "priority": "normal", "prompt": 1, "output": 1}],
    }
    path = tmp_path / "nasty.scenario.json"
    path.write_text(json.dumps(scenario))
    assert simulate_main([str(path), "--out", str(tmp_path / "logs")]) == 0
    assert trace_main([str(tmp_path / "logs"), "--html", str(tmp_path / "out.html")]) == 0
    page = (tmp_path / "out.html").read_text()
    assert page.count("</script>") == page.count("<script") == 2
    assert page.count("<!") == 1  # the document's type
    sequences = data_of(page)["sequences"]
    assert isinstance(sequences, list)
    assert sequences[0]["name"] == name


def test_a_drivers_log_alone_is_drawn(tmp_path: Path) -> None:
    """The doors' logs may be elsewhere: then there is no queue to show."""
    write_recording(tmp_path)
    out = tmp_path / "out.html"
    assert trace_main([str(tmp_path), "--html", str(out)]) == 0
    data = data_of(out.read_text())
    assert data["bound"] is None
    assert data["waits"] == []


def test_nothing_to_write_is_a_mistake(folder: Path, capsys: Capture) -> None:
    """Else the command would do nothing, successfully."""
    assert trace_main([str(folder)]) == 2
    assert "--perfetto FILE, --html FILE, or both" in capsys.readouterr().err


def test_a_damaged_log_is_not_drawn(folder: Path, tmp_path: Path, capsys: Capture) -> None:
    """And nothing is written."""
    flip(folder / "driver.000000.log", 300)
    assert trace_main([str(folder), "--html", str(tmp_path / "out.html")]) == 2
    assert "damaged" in capsys.readouterr().err
    assert not (tmp_path / "out.html").exists()


def test_a_file_that_cannot_be_written_is_one_line(folder: Path, tmp_path: Path, capsys: Capture) -> None:
    """No stack trace for a wrong path."""
    assert trace_main([str(folder), "--html", str(tmp_path / "no" / "out.html")]) == 2
    assert "No such file or directory" in capsys.readouterr().err
