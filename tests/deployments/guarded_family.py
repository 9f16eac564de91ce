"""A leader that contains itself, and its descendants. Each prints its pid and waits. Run as a script, by test_guard.

The arguments say how each generation is made: `fork`, or a subprocess: `plain`, `own-group` (of a process group of its
own) or `odd-name` (with a name that is hard to read). All end by themselves after a while, whatever the test does.
"""

import multiprocessing
import os
import signal
import subprocess
import sys
from pathlib import Path

from deployments import guard

ODD_NAME = b"\xff) Z 1 1 1"  # no UTF-8, and a parenthesis as if the name ended there


def live(ways: list[str]) -> None:
    signal.alarm(30)
    print(os.getpid(), flush=True)
    match ways:
        case ["fork", *rest]:
            multiprocessing.get_context("fork").Process(target=descend, args=(rest,)).start()
        case [way, *rest]:
            process_group = 0 if way == "own-group" else None
            subprocess.Popen([sys.executable, __file__, "descend", way, *rest], process_group=process_group)


def descend(ways: list[str]) -> None:
    live(ways)
    signal.pause()


def main(role: str, *ways: str) -> None:
    if role == "descend":
        if ways[0] == "odd-name":
            Path("/proc/self/comm").write_bytes(ODD_NAME)
        descend(list(ways[1:]))
    guard.contain()
    live(list(ways))
    sys.stdin.readline()
    os._exit(0)  # without multiprocessing's wait for its children


if __name__ == "__main__":
    main(*sys.argv[1:])
