"""A leader that contains itself, and its descendants. Each prints its pid and waits. Run as a script, by test_guard.

The arguments say how each generation is made: `subprocess`, `fork`, or `odd-name` (a subprocess with a hostile name).
"""

import multiprocessing
import os
import subprocess
import sys
import time
from pathlib import Path

from deployments import guard

ODD_NAME = b"\xff) Z 1 1 1"  # no UTF-8, and a parenthesis as if the name ended there


def live(ways: list[str]) -> None:
    print(os.getpid(), flush=True)
    match ways:
        case ["fork", *rest]:
            multiprocessing.get_context("fork").Process(target=descend, args=(rest,)).start()
        case [way, *rest]:
            subprocess.Popen([sys.executable, __file__, "descend", way, *rest])


def descend(ways: list[str]) -> None:
    live(ways)
    time.sleep(120)


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
