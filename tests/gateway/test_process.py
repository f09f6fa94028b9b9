"""Child processes: nothing outlives its parent, nothing waits for ever."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from gateway.process import MAX_LINE_BYTES, CannotStart, Child, ChildSpec
from tests.support import wait_until


def spec(program: str, stop_grace_s: float = 5.0) -> ChildSpec:
    return ChildSpec(
        name="child", argv=(sys.executable, "-uc", program), env=dict(os.environ), stop_grace_s=stop_grace_s
    )


class Lines:
    """Collects what a child writes."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def __call__(self, _name: str, line: str) -> None:
        self.seen.append(line)


def is_alive(pid: int) -> bool:
    """Whether ``pid`` runs; one that has ended and waits to be collected does not."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


async def test_output_arrives_line_by_line_and_the_last_line_is_kept() -> None:
    """The last line of a child that failed is most often the reason."""
    lines = Lines()
    child = await Child.start(spec("import sys; print('one'); print('two', file=sys.stderr); sys.exit(3)"), lines)

    assert await child.wait() == 3
    assert lines.seen == ["one", "two"]
    assert child.last_line == "two"


async def test_a_progress_bar_shows_its_last_state() -> None:
    """Libraries draw bars with carriage returns, which would overwrite our own line."""
    lines = Lines()
    await (await Child.start(spec(r"print('10%\r50%\r100%')"), lines)).wait()
    assert lines.seen == ["100%"]


async def test_an_endless_line_is_cut() -> None:
    """A child that writes no newline must not fill the parent's memory."""
    lines = Lines()
    await (await Child.start(spec(f"print('x' * {3 * MAX_LINE_BYTES})"), lines)).wait()
    assert len(lines.seen) > 1
    assert sum(map(len, lines.seen)) == 3 * MAX_LINE_BYTES


async def test_stop_lets_a_child_finish_within_its_grace() -> None:
    """Draining streams takes a moment and must not be cut short."""
    program = "import signal, sys; signal.signal(15, lambda *_: sys.exit(7)); print('ready'); signal.pause()"
    lines = Lines()
    child = await Child.start(spec(program), lines)
    await wait_until(lambda: lines.seen == ["ready"], "the child handles signals")

    await child.stop()

    assert await child.wait() == 7


async def test_stop_kills_a_child_that_does_not_end_and_all_that_it_started() -> None:
    """A hung process must not keep the whole from stopping, nor leave its helpers behind."""
    program = (
        "import signal, subprocess, sys; signal.signal(15, signal.SIG_IGN);"
        "helper = subprocess.Popen(['sleep', '60']); print(helper.pid); signal.pause()"
    )
    lines = Lines()
    child = await Child.start(spec(program, stop_grace_s=0.1), lines)
    await wait_until(lambda: len(lines.seen) == 1, "the helper runs")

    await child.stop()

    assert await child.wait() == -signal.SIGKILL
    await wait_until(lambda: not is_alive(int(lines.seen[0])), "the helper has ended")


async def test_stop_is_idempotent() -> None:
    """Stopping a child that has ended by itself is ordinary."""
    child = await Child.start(spec("pass"), Lines())
    await child.wait()
    await child.stop()
    child.kill()
    await child.stop()


async def test_a_program_that_does_not_exist_is_a_sentence() -> None:
    """It is for the person who configured it."""
    missing = ChildSpec(name="child", argv=("/no/such/program",), env={}, stop_grace_s=1.0)
    with pytest.raises(CannotStart, match="cannot run /no/such/program: No such file or directory"):
        await Child.start(missing, Lines())


async def test_a_ctrl_c_of_the_terminal_does_not_reach_a_child() -> None:
    """The parent decides who stops first; a signal to its process group must not decide for it."""
    lines = Lines()
    child = await Child.start(spec("import os; print(os.getsid(0), os.getpid(), os.getpgid(0))"), lines)
    await child.wait()
    assert set(lines.seen[0].split()) == {str(child.pid)}


@pytest.mark.skipif(sys.platform != "linux", reason="needs PR_SET_PDEATHSIG")
async def test_children_die_with_a_killed_parent() -> None:
    """A kill -9 gives the parent no chance to stop anything; the kernel has to."""
    program = (
        "import asyncio, os, sys\n"
        "from gateway.process import Child, ChildSpec\n"
        "async def main():\n"
        "    spec = ChildSpec(name='c', argv=('sleep', '60'), env=dict(os.environ), stop_grace_s=1)\n"
        "    child = await Child.start(spec, print)\n"
        "    print(child.pid, flush=True)\n"
        "    await child.wait()\n"
        "asyncio.run(main())\n"
    )
    parent = await asyncio.create_subprocess_exec(sys.executable, "-c", program, stdout=asyncio.subprocess.PIPE)
    assert parent.stdout is not None
    child_pid = int(await parent.stdout.readline())
    assert is_alive(child_pid)

    parent.kill()
    await parent.wait()

    await wait_until(lambda: not is_alive(child_pid), "the child has ended")
