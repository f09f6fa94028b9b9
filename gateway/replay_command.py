"""``sluicegate replay``: the recorded events through the same scheduler again.

Without more it checks that every plan comes out as it was recorded, and says what it covered; a difference is told with
its step, its events and its field, and the exit code is 1. What cannot be read, or is damaged, is refused with 2.
With an option it tells what would have happened otherwise (``what_if_command``).
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from admission.presets import PRESETS
from admission.record.entries import Opened
from admission.record.sentences import counted
from admission.record.snapshot import SnapshotError
from admission.record.verify import Difference, DriverReplay, WrongLog
from gateway.command_line import LineParser, refuse, run, say
from gateway.log_files import BadLog, Segment, read_logs, remarks
from gateway.queue_replay import check_queues
from gateway.simulate_errors import OptionError
from gateway.what_if_command import add_options, epilog, wants_what_if, what_if

DIFFERENT = 1


def replay_main(argv: Sequence[str]) -> int:
    """Run the command; its exit code."""
    arguments = _parser().parse_args(argv)
    return run("replay", lambda: _replay(arguments))


def _replay(arguments: argparse.Namespace) -> int:
    try:
        logs = read_logs(arguments.logs)
        if not logs.drivers:
            raise BadLog("there is no driver's log in these files, so nothing was planned in them")
        if wants_what_if(arguments):
            say(what_if(arguments, logs))
            return 0
        outcomes = [_verify(segments) for segments in logs.drivers]
    except (BadLog, OptionError) as error:
        return refuse("replay", str(error))
    is_same, lines = check_queues(logs)
    say(*lines, *[f"  {remark}" for door in logs.doors for remark in remarks(door)], *logs.unread_remarks())
    return 0 if all(outcomes) and is_same else DIFFERENT


def _verify(segments: Sequence[Segment]) -> bool:
    """Replay the log of one driver and say what came of it; whether all was equal."""
    opened = segments[0].opened
    assert isinstance(opened, Opened)  # noqa: S101 - else it would not be a driver's
    replay = DriverReplay()
    for segment in segments:
        try:
            difference = replay.segment(segment.entries)
        except (WrongLog, SnapshotError) as error:
            raise BadLog(f"{segment.path}: {error}") from None
        if difference is not None:
            say(*_told(opened, segment, difference))
            return False
    covered = replay.covered()
    say(
        f"{opened.driver_id}: {counted(covered.plans, 'plan')} of {counted(covered.steps, 'step')}"
        f" and {counted(covered.events, 'event')} are the same, byte for byte ({counted(len(segments), 'segment')})"
    )
    for remark in remarks(segments):
        say(f"  {remark}")
    return True


def _told(opened: Opened, segment: Segment, difference: Difference) -> list[str]:
    what = "a step without a plan" if difference.plan is None else f"plan {difference.plan}"
    return [
        f"{opened.driver_id}: {what} comes out otherwise (record {difference.record} of {segment.path.name})",
        f"  events:   {', '.join(difference.events) or 'none'}",
        f"  field:    {difference.field}",
        f"  recorded: {difference.logged!r}",
        f"  replayed: {difference.replayed!r}",
    ]


def _parser() -> argparse.ArgumentParser:
    parser = LineParser(
        "replay",
        description="Put the recorded events through the scheduler again, and check that it decides the same."
        " With any of the options: tell what would have happened otherwise, beside what did.",
    )
    parser.epilog = epilog()
    parser.add_argument("logs", type=Path, nargs="+", metavar="LOG", help="logs of a gateway: files, or their folder")
    add_options(parser, tuple(PRESETS))
    return parser
