"""What is logged meanwhile: never anything of what clients sent, and no error that nobody expected."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from tests.fuzz.inputs import MARKER

_FORMAT = logging.Formatter("%(name)s %(levelname)s: %(message)s")


class Listener(logging.Handler):
    """Keeps what must not be in a log."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self._faults: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        line = _FORMAT.format(record)
        if MARKER in line:
            self._faults.append(f"logged what a client sent: {line[:2000]}")
        elif record.levelno >= logging.ERROR:
            self._faults.append(f"logged an error: {line[:2000]}")

    def taken(self) -> list[str]:
        """Since the last look."""
        faults, self._faults = self._faults, []
        return faults


@contextmanager
def listening() -> Iterator[Listener]:
    """All loggers, those too that don't pass on what they get."""
    listener = Listener()
    loggers = [logging.getLogger(name) for name in (None, "ray.serve")]
    loggers = [logger for logger in loggers if logger.parent is None or not logger.propagate]
    for logger in loggers:
        logger.addHandler(listener)
    try:
        yield listener
    finally:
        for logger in loggers:
            logger.removeHandler(listener)
