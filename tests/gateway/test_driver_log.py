"""What a driver decides is recorded as it decides it, and comes out the same again."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgpack
import pytest
import structlog.testing

from admission.events import EndReason
from admission.record.entries import Executed, Stepped
from admission.record.tell import tell
from admission.record.verify import DriverReplay
from gateway.clock import monotonic_us
from gateway.log_files import Segment, read_logs
from gateway.log_writer import RecordBounds
from gateway.recording import Recorder
from tests.gateway.small_cluster import is_idle, member, read_all
from tests.gateway.worker_peer import WorkerPeer
from tests.support import wait_until

NUM_STREAMS = 12
PROMPT = tuple([7_919 * number % 30_011 for number in range(1, 21)])


def segments_in(folder: Path) -> tuple[Segment, ...]:
    (segments,) = read_logs([folder]).drivers
    return segments


def logs_in(folder: Path) -> list[Path]:
    return list(folder.glob("*.log"))


async def serve(url: str, run_dir: Path, worker: WorkerPeer, recorder: Recorder) -> None:
    async with member(url, run_dir, workers=(worker.address,), recorder=recorder) as gateway:
        await gateway.ready()
        streams = [await gateway.submit(max_tokens=20, prompt_ids=PROMPT) for _ in range(NUM_STREAMS)]
        for stream in streams:
            assert len((await read_all(stream)).token_ids) == 20
        await wait_until(lambda: is_idle(gateway), "everything is given back")
    await asyncio.to_thread(recorder.close)


async def test_what_was_served_is_replayed(url: str, run_dir: Path, worker: WorkerPeer, tmp_path: Path) -> None:
    """Over rotations, too: the segments are small here."""
    bounds = RecordBounds(segment_bytes=2_000)
    recorder = Recorder(tmp_path, gateway_id="g0", started="run", clock=monotonic_us, bounds=bounds)
    await serve(url, run_dir, worker, recorder)
    replay = DriverReplay()
    segments = segments_in(tmp_path)
    assert [replay.segment(segment.entries) for segment in segments] == [None] * len(segments)
    entries = [entry for segment in segments for entry in segment.entries]
    assert segments[-1].is_last
    assert sum(isinstance(entry, Executed) for entry in entries) == replay.covered().plans > 0
    story = tell(entries)
    assert len(story.lives) == NUM_STREAMS
    assert {life.end.reason for life in story.lives.values() if life.end} == {EndReason.LENGTH}
    assert all(beat.ends_us is not None for beat in story.beats)


async def test_nothing_of_a_prompt_or_an_answer_is_in_the_log(
    url: str, run_dir: Path, worker: WorkerPeer, tmp_path: Path
) -> None:
    """A log of decisions may be given to somebody who must not read what clients write."""
    recorder = Recorder(tmp_path, gateway_id="g0", started="run", clock=monotonic_us)
    await serve(url, run_dir, worker, recorder)
    told = b"".join([path.read_bytes() for path in logs_in(tmp_path)])
    assert len(told) > 1_000
    for first, second in pairwise(PROMPT):  # which the worker echoes, too
        assert msgpack.packb(first) + msgpack.packb(second) not in told


async def test_a_disk_that_refuses_everything_harms_no_stream(
    url: str, run_dir: Path, worker: WorkerPeer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Recording is a convenience; serving is not."""
    whole = Path.open

    def refuse(path: Path, *arguments: Any, **options: Any) -> Any:
        if path.suffix == ".log":
            raise PermissionError(13, "Permission denied")
        return whole(path, *arguments, **options)

    recorder = Recorder(tmp_path, gateway_id="g0", started="run", clock=monotonic_us)
    monkeypatch.setattr(Path, "open", refuse)
    with structlog.testing.capture_logs() as said:
        await serve(url, run_dir, worker, recorder)
    assert logs_in(tmp_path) == []
    failures = [line for line in said if line["event"] == "recording failed, will be tried again"]
    assert 1 <= len(failures) <= 2, "once for each log"


async def test_a_log_ends_with_its_worker(url: str, run_dir: Path, tmp_path: Path) -> None:
    """What ran there goes on elsewhere; this log says as much as it knows, and that it is whole."""
    peer = WorkerPeer()
    await peer.start(f"unix:{run_dir}/w0")
    recorder = Recorder(tmp_path, gateway_id="g0", started="run", clock=monotonic_us)
    async with member(url, run_dir, workers=(peer.address,), recorder=recorder) as gateway:
        await gateway.ready()
        stream = await gateway.submit(max_tokens=400)
        await anext(aiter(stream))
        await peer.kill()
        await wait_until(lambda: any(tmp_path.glob("*driver*")), "the log is written")
    await asyncio.to_thread(recorder.close)
    segments = segments_in(tmp_path)
    assert segments[-1].is_last
    story = tell(segments[0].entries)
    assert story.stopped_us is not None
    assert [life.end for life in story.lives.values()] == [None]
    assert sum(isinstance(entry, Stepped) for entry in segments[0].entries) > 2
