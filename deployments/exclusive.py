"""One process at a time for what is made once on a machine."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout


@contextmanager
def exclusively(path: Path, waiting: Callable[[], None], every_s: float | None = None) -> Iterator[None]:
    """Hold the lock file `path`, which the system frees when its holder dies.

    `waiting` is called if it isn't free, and then each `every_s`, until it is.
    """
    lock = FileLock(path)
    patience_s = 0.0
    while not lock.is_locked:
        try:
            lock.acquire(timeout=patience_s)
        except Timeout:
            waiting()
            patience_s = -1 if every_s is None else every_s
    try:
        yield
    finally:
        lock.release()
