"""Where keys come from, read again when it changes. What becomes unreadable leaves the last good keys."""

import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from app.access.keys import Key, KeyRing, read_key
from app.access.keys_file import KeysError, parse_keys, read_keys
from app.access.settings import AccessConfig

logger = logging.getLogger("ray.serve")

Signature = tuple[int, int, int, int]


class KeySources:
    """A file, an environment variable, or both."""

    def __init__(self, config: AccessConfig, environ: Mapping[str, str] = os.environ) -> None:
        self._file = Path(config.keys_file) if config.keys_file else None
        self._seen: Signature | None = None  # of the file, at the last look
        self._in_file: Sequence[Key] | None = None
        self._in_variable = self._read_variable(config.keys_env, environ) if config.keys_env else None
        self._complaint = ""
        self.ring = self._joined()
        self.look()

    def look(self) -> None:
        """Read the file if it has changed. A look at one that hasn't is one `stat`."""
        if self._file is None:
            return
        seen = _signature(self._file)
        if seen is not None and seen == self._seen:
            return
        self._seen = seen  # taken before reading: a change meanwhile is read at the next look
        try:
            self._in_file = [read_key(record) for record in read_keys(self._file)]
        except KeysError as error:
            self._complain(f"the keys of {self._file} can't be read: {error}")
            return
        self._complaint = ""
        self.ring = self._joined()
        logger.info("%s keys were read from %s", len(self._in_file), self._file)

    def _joined(self) -> KeyRing | None:
        """All keys; None where none could be read yet. Where both have one of a name, or of a secret, the file's."""
        if self._in_file is None and self._in_variable is None:
            return None
        of_file, of_variable = self._in_file or (), self._in_variable or ()
        names, digests = {key.name for key in of_file}, {key.digest for key in of_file}
        others = [key for key in of_variable if key.name not in names and key.digest not in digests]
        if len(others) < len(of_variable):
            logger.error("keys of the environment that the file has, too, by name or by secret, are left out")
        return KeyRing([*of_file, *others])

    def _read_variable(self, name: str, environ: Mapping[str, str]) -> Sequence[Key] | None:
        try:
            return [read_key(record) for record in parse_keys(environ[name])]
        except KeyError:
            logger.error("the environment variable %s, which is to hold keys, isn't set", name)
        except KeysError as error:
            logger.error("the keys of the environment variable %s can't be read: %s", name, error)
        return None

    def _complain(self, complaint: str) -> None:
        """Once, however often it is looked at."""
        if complaint != self._complaint:
            self._complaint = complaint
            logger.error("%s %s", complaint, "The last ones stay." if self._in_file is not None else "It has none yet.")


def _signature(path: Path) -> Signature | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino
