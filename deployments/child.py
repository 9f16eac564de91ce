"""A command that runs for minutes, and ends when who started it does."""

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

PATIENCE_S = 10.0  # for it to remove its temporary files after an interrupt
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None


@contextmanager
def running(command: Sequence[str]) -> Iterator["subprocess.Popen[str]"]:
    """A process in a group of its own, its output and errors in one pipe, which does not outlive the block.

    Nor the thread that started it, even where that is killed. It stays in the session, for `guard` to find.
    """
    pipe, out = subprocess.PIPE, subprocess.STDOUT
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=pipe,
        stderr=out,
        text=True,
        errors="replace",
        process_group=0,
        preexec_fn=partial(signalled_with_parent, signal.SIGKILL),
    ) as process:
        try:
            yield process
        except BaseException:
            _stop(process)
            raise


def signalled_with_parent(number: int) -> None:
    """In a child, before it becomes another program: have this signal come when its parent thread ends."""
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, number)


def _stop(process: "subprocess.Popen[str]") -> None:
    # After an interrupt it may remove its temporary files, which can be gigabytes.
    for number, patience in ((signal.SIGINT, PATIENCE_S), (signal.SIGKILL, None)):
        try:
            os.killpg(process.pid, number)
            process.wait(patience)
        except ProcessLookupError:
            return
        except subprocess.TimeoutExpired:
            continue
