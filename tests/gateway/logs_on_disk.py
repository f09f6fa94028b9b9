"""Logs in files, as a recorder leaves them."""

from __future__ import annotations

from pathlib import Path

from gateway.simulate_command import simulate_main
from tests.admission.record.recorded import Recording, busy_recording

GOLDEN = Path(__file__).parent.parent / "golden"


def write_recording(folder: Path, recording: Recording | None = None, name: str = "g0.run.driver-w0-1") -> list[Path]:
    """The segments of one driver."""
    paths = []
    for number, data in enumerate((recording or busy_recording()).end()):
        path = folder / f"{name}.{number:06d}.log"
        path.write_bytes(data)
        paths.append(path)
    return paths


def simulate_baseline(folder: Path) -> Path:
    assert simulate_main([str(GOLDEN / "baseline.scenario.json"), "--out", str(folder)]) == 0
    return folder


def flip(path: Path, place: int) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 0x10
    path.write_bytes(bytes(data))
