"""How many tokens an answer took, from its bytes as they pass: cheaply, and without changing any."""

import json
import re
from typing import Any

TAIL = 16 * 1024  # bytes of a stream's end in which its usage is looked for
LARGEST = 4096  # bytes of a usage document
_KEY = b'"usage"'  # inside of a string it would have backslashes
_USAGE = re.compile(_KEY + rb"\s*:\s*(?=\{)")
_DECODER = json.JSONDecoder()


class AnswerTokens:
    """Listens to one answer."""

    def __init__(self, prompt_tokens: int) -> None:
        self._prompt_tokens = prompt_tokens  # estimated, for where the answer doesn't say
        self._status: int | None = None
        self._streamed = False
        self._events = 0
        self._tail = b""

    def start(self, status: int) -> None:
        self._status = status

    def body(self, data: bytes, *, more: bool) -> None:
        self._streamed = self._streamed or more
        if self._streamed:
            self._events += data.count(b"data:")
            self._tail = (self._tail + data)[-TAIL:]
        else:
            self._tail = data

    def total(self) -> int | None:
        """Prompt and answer; None where nothing tells. An error took none. A stream that says nothing of its usage took
        as many as it has events, which is near for engines that send each token by itself."""
        if self._status is None:
            return None
        if self._status >= 400:
            return 0
        usage = usage_in(self._tail)
        if usage is not None:
            return tokens_in(usage, self._prompt_tokens)
        return self._prompt_tokens + self._events if self._streamed else None


def usage_in(data: bytes) -> dict[str, Any] | None:
    """The last `usage` in an answer of OpenAI's or Anthropic's API, whole or streamed."""
    end = len(data)
    while (at := data.rfind(_KEY, 0, end)) >= 0:
        end = at
        if found := _USAGE.match(data, at):
            try:
                usage, _ = _DECODER.raw_decode(data[found.end() : found.end() + LARGEST].decode("utf-8", "replace"))
            except ValueError:
                continue
            return usage if isinstance(usage, dict) else None
    return None


def tokens_in(usage: dict[str, Any], prompt_tokens: int) -> int:
    """All tokens of a usage document; `prompt_tokens`, where it doesn't say those of the prompt."""
    total = _count(usage, "total_tokens")
    if total is not None:
        return total
    prompt = _count(usage, "prompt_tokens", "input_tokens")
    answer = _count(usage, "completion_tokens", "output_tokens")
    return (prompt_tokens if prompt is None else prompt) + (answer or 0)


def _count(usage: dict[str, Any], *names: str) -> int | None:
    for name in names:
        value = usage.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            return value
    return None
