"""A file of keys: reading it, and adding a key to it."""

import fcntl
import json
import os
import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import yaml
from pydantic import TypeAdapter, ValidationError

from app.access.secret import without_secrets
from app.access.settings import KeyRecord
from app.validation import explain
from app.yaml_lines import Document, Location, YamlError, load
from deployments.errors import dotted

_RECORDS = TypeAdapter(tuple[KeyRecord, ...])
_FIRST_ITEM = re.compile(r"^( *)- ", re.MULTILINE)


class KeysError(Exception):
    """Keys can't be read or written. Each of `problems` is a sentence with its place, and quotes no secret."""

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = [without_secrets(problem) for problem in problems]
        super().__init__(" ".join(self.problems))


def parse_keys(text: str) -> tuple[KeyRecord, ...]:
    """The keys in a YAML or JSON list.

    Raises:
        KeysError: it can't be read, or holds what isn't a key, or a name or a hash twice. An empty text is no list: it
            may be a file that is being written. `[]` is one.
    """
    try:
        document = load(text)
        records = _RECORDS.validate_python(document.value)
    except YamlError as error:
        raise KeysError([_placed(error.line, (), str(error))]) from None
    except ValidationError as error:
        if not isinstance(document.value, list):
            raise KeysError(["The keys must be a list: '- name: ...' for each of them."]) from None
        found = explain(error, KeyRecord, document, ())
        raise KeysError([_placed(document.line(at), at, message) for at, message in found]) from None
    if problems := list(_repeated(records, document)):
        raise KeysError(problems)
    return records


def read_keys(path: Path) -> tuple[KeyRecord, ...]:
    """The keys in a file.

    Raises:
        KeysError: as `parse_keys`, or the file can't be read.
    """
    return parse_keys(_read(path))


def add_key(path: Path, record: KeyRecord) -> None:
    """Add a key to a file, or make the file. It is replaced in one step, and only its owner may read it.

    Raises:
        KeysError: the file can't be read or written, or has a key of that name.
    """
    path = path.resolve()  # a link stays one
    try:
        with _alone_in(path.parent):
            text = _read(path) if path.exists() else ""
            before = parse_keys(text) if text.strip() else ()
            if any(each.name == record.name for each in before):
                raise KeysError([f"{path} has a key '{record.name}'; choose another name, or take that one out first."])
            after = _with(text, as_document(record))
            if not _reads_as(after, (*before, record)):
                raise KeysError([f"{path} is written in a way that can't be added to; add the record by hand."])
            _replace(path, after)
    except OSError as error:
        raise KeysError([f"Cannot write {path}: {error.strerror}."]) from None


def as_document(record: KeyRecord) -> dict[str, Any]:
    """A key as a file has it: what it doesn't say is left out."""
    document: dict[str, Any] = record.model_dump(mode="json", exclude_defaults=True)
    return document


def as_yaml(document: dict[str, Any]) -> str:
    text: str = yaml.safe_dump([document], sort_keys=False, width=1000)
    return text


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it isn't UTF-8"
        raise KeysError([f"Cannot read {path}: {reason}."]) from None


def _repeated(records: Sequence[KeyRecord], document: Document) -> Iterator[str]:
    for index, record in enumerate(records):
        for earlier in records[:index]:
            if record.name == earlier.name:
                at = (index, "name")
                yield _placed(document.line(at), at, f"The name '{record.name}' is taken by a key above.")
            if record.sha256 == earlier.sha256:
                at = (index, "sha256")
                yield _placed(document.line(at), at, f"The secret is that of the key '{earlier.name}' above.")


def _reads_as(text: str, records: Sequence[KeyRecord]) -> bool:
    try:
        return parse_keys(text) == records
    except KeysError:
        return False


def _placed(line: int | None, at: Location, message: str) -> str:
    parts = (f"line {line}" if line else "", dotted(at), message)
    return ": ".join(part for part in parts if part)


def _with(text: str, document: dict[str, Any]) -> str:
    """A file's text with one record more. What is there stays as it is written, comments too."""
    with suppress(ValueError):
        listed = json.loads(text)
        return json.dumps([*listed, document], indent=2) + "\n"
    first = _FIRST_ITEM.search(text)
    indent = first[1] if first else ""
    added = "".join(indent + line for line in as_yaml(document).splitlines(keepends=True))
    return text + ("" if not text or text.endswith("\n") else "\n") + added


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """One process at a time, without a lock file that would stay."""
    opened = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(opened, fcntl.LOCK_EX)
        yield
    finally:
        os.close(opened)


def _replace(path: Path, text: str) -> None:
    number, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # its mode is 0600
    try:
        with os.fdopen(number, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        with suppress(OSError):  # the server's user goes on reading what root has added to
            owner = path.stat()
            os.chown(name, owner.st_uid, owner.st_gid)
        os.replace(name, path)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(name)
        raise
