"""Runs a command so that nothing of it is left, whatever it starts, and however the benchmark ends.

    python keeper.py PATIENCE_S COMMAND [ARGUMENT]...

Processes that the command's own let go of become this one's children: so they still count as the command's, and are
found at the end. SIGTERM interrupts the command; what is there `PATIENCE_S` later is killed. Standard library only.
"""

import ctypes
import os
import signal
import sys
import time
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36
_SIGNALS = (signal.SIGTERM, signal.SIGCHLD)
_LOOK_S = 0.5


def keep(command: list[str], patience_s: float) -> None:
    """Returns once the command has ended, and everything that it started."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    # Waited for, not handled: none is lost, and none comes in the middle of something.
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    pid = os.posix_spawnp(command[0], command, os.environ, setsigmask=[], setsigdef=[signal.SIGINT])
    deadline_s = float("inf")
    while pid not in _reap() and time.monotonic() < deadline_s:
        came = signal.sigtimedwait(_SIGNALS, _LOOK_S)
        if came is not None and came.si_signo == signal.SIGTERM:
            os.kill(pid, signal.SIGINT)
            deadline_s = min(deadline_s, time.monotonic() + patience_s)
    while found := _descendants(os.getpid()):
        for each in found:
            os.kill(each, signal.SIGKILL)
        signal.sigtimedwait([signal.SIGCHLD], _LOOK_S)
        _reap()


def _reap() -> list[int]:
    """The children that have ended since the last time."""
    ended = []
    try:
        while (pid := os.waitpid(-1, os.WNOHANG)[0]) != 0:
            ended.append(pid)
    except ChildProcessError:
        pass
    return ended


def _descendants(pid: int) -> list[int]:
    children: list[int] = []
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children += map(int, file.read_text().split())
        except OSError:
            continue  # the thread ended while we looked
    return [*children, *(each for child in children for each in _descendants(child))]


if __name__ == "__main__":
    keep(sys.argv[2:], float(sys.argv[1]))
