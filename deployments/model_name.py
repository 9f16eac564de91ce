"""The model's name in requests and answers, changed in their bytes: nothing else of a document is written anew."""

import json
import re
from collections.abc import Callable, Collection, Iterator
from typing import Any

from pydantic_core import from_json

_SPACE = re.compile(rb"[ \t\n\r]*+")
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_SCALAR = re.compile(rb'[^\s,:"\[\]{}]++')
_NESTING = re.compile(rb'[\[{\]}]|"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)  # strings too, to pass over what is in them
_SHORT_ESCAPES = {'"': '"', "\\": "\\", "/": "/", "\b": "b", "\f": "f", "\n": "n", "\r": "r", "\t": "t"}


def values_of(document: bytes, key: str) -> Iterator[tuple[int, int]]:
    """Where each value of a key of the outermost object begins and ends. More than one: JSON takes the last.

    Raises:
        ValueError: as `members_of`.
    """
    for name, start, end in members_of(document):
        if _is(name, key):
            yield start, end


def members_of(document: bytes) -> Iterator[tuple[bytes, int, int]]:
    """Each key of the outermost object, as it is spelt, and where its value begins and ends.

    Raises:
        ValueError: the document is no JSON object, as far as it was read.
    """
    at = _after(document, _skip(document, 0), b"{")
    if document[at : at + 1] == b"}":
        return
    while True:
        name_end = _value_end(document, at, _STRING)
        start = _after(document, _skip(document, name_end), b":")
        end = _value_end(document, start)
        yield document[at:name_end], start, end
        at = _skip(document, end)
        if document[at : at + 1] == b"}":
            return
        at = _after(document, at, b",")


def replace_model(document: bytes, name: str) -> bytes:
    """The document with another `model` in its outermost object, whatever that was.

    Raises:
        ValueError: the document is no JSON object, as far as it was read.
    """
    value = json.dumps(name, ensure_ascii=False).encode()
    pieces, at = [], 0
    for start, end in values_of(document, "model"):
        pieces += [document[at:start], value]
        at = end
    return b"".join([*pieces, document[at:]])


def asks_to_stream(document: bytes) -> bool:
    """Whether a request's `stream` is true.

    Raises:
        ValueError: the document is no JSON object, as far as it was read.
    """
    value = b""
    for start, end in values_of(document, "stream"):
        value = document[start:end]
    return value == b"true"


def fields_of(document: bytes, names: Collection[str]) -> Iterator[tuple[str, Any]]:
    """The fields of the outermost object that have one of these names, each as often as it is there, with its value.

    Raises:
        ValueError: as `members_of`; or a value is no JSON.
    """
    for spelt, start, end in members_of(document):
        name = json.loads(spelt)
        if name in names:
            yield name, from_json(document[start:end])


def answer_renamer(old: str, new: str) -> Callable[[bytes], bytes]:
    """A function that gives answers the model name `new` where they say `old`, at any depth.

    It needs whole JSON strings, so a line of a stream at least. A key is never mistaken for text: inside a string
    every quote has a backslash before it, and before a key's own first quote there is none.
    """
    if old == new:
        return lambda data: data
    # What is searched for comes first, what may not be before it after: so the search is one for plain bytes.
    pattern = re.compile(rb'("model"(?<!\\"model")[ \t\n\r]*+:[ \t\n\r]*+)"' + _spellings(old) + b'"')
    value = json.dumps(new, ensure_ascii=False).encode()

    def rename(data: bytes) -> bytes:
        if b'"model"' not in data:
            return data
        return pattern.sub(lambda match: match[1] + value, data)

    return rename


def _spellings(name: str) -> bytes:
    """A pattern for every way in which JSON can spell `name` inside quotes, the usual one first."""
    usual = re.escape(json.dumps(name, ensure_ascii=False)[1:-1].encode())
    return b"(?:" + usual + b"|" + b"".join(map(_spellings_of_character, name)) + b")"


def _spellings_of_character(character: str) -> bytes:
    utf16 = character.encode("utf-16-be").hex()
    units = [utf16[at : at + 4] for at in range(0, len(utf16), 4)]
    ways = [b"".join(rb"\\u(?i:%s)" % unit.encode() for unit in units)]
    if character not in '"\\' and character >= " ":
        ways.append(re.escape(character.encode()))
    if short := _SHORT_ESCAPES.get(character):
        ways.append(re.escape(b"\\" + short.encode()))
    return b"(?:" + b"|".join(ways) + b")"


def _is(string: bytes, key: str) -> bool:
    """Whether a JSON string, with its quotes, says `key`."""
    if b"\\" not in string:
        return string[1:-1] == key.encode()
    return bool(json.loads(string) == key)


def _value_end(document: bytes, at: int, kind: re.Pattern[bytes] | None = None) -> int:
    """Where the value that begins `at` ends; `kind` is what it must be, if that is known."""
    first = document[at : at + 1]
    if first in (b"{", b"["):
        if kind is None:
            return _nested_end(document, at)
    elif match := (kind or (_STRING if first == b'"' else _SCALAR)).match(document, at):
        return match.end()
    raise ValueError(f"no JSON value at byte {at}")


def _nested_end(document: bytes, at: int) -> int:
    depth = 0
    for match in _NESTING.finditer(document, at):
        token = match[0]
        if token in (b"{", b"["):
            depth += 1
        elif token in (b"}", b"]"):
            depth -= 1
        if depth == 0:
            return match.end()
    raise ValueError(f"the JSON value at byte {at} has no end")


def _after(document: bytes, at: int, token: bytes) -> int:
    """The place of what comes after `token`, which must be `at`."""
    if document[at : at + 1] != token:
        raise ValueError(f"expected {token.decode()} at byte {at} of a JSON document")
    return _skip(document, at + 1)


def _skip(document: bytes, at: int) -> int:
    match = _SPACE.match(document, at)
    assert match is not None, "it matches nothing, too"
    return match.end()
