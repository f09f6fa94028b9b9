"""How a worker process ends: at once and cleanly on a signal, and never later than its parent."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from types import FrameType

_PR_SET_PDEATHSIG = 1  # from <sys/prctl.h>


class Stopped(BaseException):
    """A signal asked the process to end. Not an ``Exception``: no handler of failures may take it for one."""


def stop_on_signals() -> None:
    """Let SIGTERM and SIGINT raise ``Stopped`` in the main thread, wherever it is, once."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _raise_stopped)


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent is gone, so that no worker holds a device for nobody.

    SIGKILL, because a worker that is stopped or deep in a kernel would not get round to anything else.
    """
    if sys.platform != "linux":
        return
    parent = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died in between, unseen
        raise Stopped


def _raise_stopped(_number: int, _frame: FrameType | None) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    raise Stopped
