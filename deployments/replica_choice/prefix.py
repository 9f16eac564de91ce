"""From a request's document to the blocks of its prompt: a chained hash for each 256 bytes, the same in every process.

A block's hash depends on all that comes before it, so two prompts have as many blocks in common as they share of
their beginnings. The blocks stand for an engine's own, which are of tokens that only it knows.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from hashlib import blake2b
from typing import Any

from deployments.engine import Endpoint

BLOCK_BYTES = 256  # some 64 tokens of English
MAX_BLOCKS = 512  # of a prompt; what comes after them is not looked at

# What comes first in a prompt, and then what it is made of, by endpoint. Others have no prompt that a cache helps.
_FIELDS: Mapping[Endpoint, tuple[str, ...]] = {
    "chat/completions": ("tools", "messages"),
    "completions": ("prompt",),
    "responses": ("tools", "instructions", "input"),
    "messages": ("tools", "system", "messages"),
}
# Between parts, where no text can be: so none can pass for two.
_FIELD, _ITEM = b"\xff", b"\xfe"


def prompt_blocks(endpoint: Endpoint, document: Mapping[str, Any], model: str, adapter: str | None = None) -> list[int]:
    """The blocks of a request's prompt, in 64 bits each: at most `MAX_BLOCKS`, all full. The next turn of a
    conversation has all of them, and more."""
    return chain(_parts(endpoint, document), json.dumps([model, adapter]).encode())


def chain(parts: Iterable[bytes], first: bytes) -> list[int]:
    """A hash for each full block of all parts together. `first` goes into all of them."""
    text, wanted = bytearray(), BLOCK_BYTES * MAX_BLOCKS
    for part in parts:
        text += part
        if len(text) >= wanted:
            break
    digest, blocks = blake2b(first, digest_size=8).digest(), list[int]()
    for start in range(0, min(len(text), wanted) - BLOCK_BYTES + 1, BLOCK_BYTES):
        digest = blake2b(digest + text[start : start + BLOCK_BYTES], digest_size=8).digest()
        blocks.append(int.from_bytes(digest))
    return blocks


def _parts(endpoint: Endpoint, document: Mapping[str, Any]) -> Iterator[bytes]:
    for field in _FIELDS.get(endpoint, ()):
        if not (value := document.get(field)):
            continue
        yield _FIELD
        yield field.encode()
        if field == "prompt":
            yield _prompt(value)
            continue
        for item in value if isinstance(value, list) else [value]:
            yield _ITEM
            yield from _item(item)


def _prompt(value: Any) -> bytes:
    """The first of several: an engine answers all of them in one place."""
    first = value[0] if isinstance(value, list) and not isinstance(value[0], int) else value
    if isinstance(first, list):  # of token ids, each of which is at least two characters here
        first = first[: BLOCK_BYTES * MAX_BLOCKS // 2]
    return _text(first if isinstance(first, str) else json.dumps(first))


def _item(item: Any) -> Iterator[bytes]:
    """A message, or what stands where one would: its role, its content, and what else it has."""
    if not isinstance(item, dict) or "role" not in item:
        yield _content(item)
        return
    yield _text(str(item["role"]))
    content = item.get("content")
    for part in content if isinstance(content, list) else [content]:
        yield _ITEM
        yield _content(part)
    if rest := {key: value for key, value in item.items() if key not in ("role", "content")}:
        yield _ITEM
        yield _text(json.dumps(rest, sort_keys=True))


def _content(part: Any) -> bytes:
    """A text as it is; of anything else, which may be a picture of a megabyte, as little as tells it apart."""
    if isinstance(part, str):
        return _text(part)
    if isinstance(part, dict) and isinstance(text := part.get("text"), str):
        return _text(text)
    return blake2b(_text(json.dumps(part, sort_keys=True)), digest_size=16).hexdigest().encode()


def _text(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
