"""One process at a time for what is made once on a machine."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout


@contextmanager
def exclusively(path: Path, waiting: Callable[[], None]) -> Iterator[None]:
    """Hold the lock file `path`, which the system frees when its holder dies. `waiting` is called if it isn't free."""
    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        waiting()
        lock.acquire()
    try:
        yield
    finally:
        lock.release()
