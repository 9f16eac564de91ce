"""What of SGLang's answers is put right on their way, seen in 0.5.23: pure but for the streams it reads."""

import json
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from itertools import accumulate
from typing import Any, cast

from deployments.openai_layer.text import StopFilter

Document = dict[str, Any]


def with_offsets(choice: Document, sent: int = 0) -> Document:
    """A completion's choice whose tokens say where in the choice's text they begin: SGLang writes -1 for each.

    `sent` are the characters of the choice's earlier pieces.
    """
    logprobs = choice.get("logprobs")
    if not logprobs or not logprobs.get("tokens"):
        return choice
    *starts, _ = accumulate((len(token) for token in logprobs["tokens"]), initial=sent)
    return {**choice, "logprobs": {**logprobs, "text_offset": starts}}


def has_broken_stops(stops: Sequence[str]) -> bool:
    """Whether SGLang may stream the beginning of one of these: it doesn't hold back one whose characters are made of
    several tokens."""
    return not all(stop.isascii() for stop in stops)


class _Choice:
    """One choice of a stream."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._filter = StopFilter(stops)
        self._sent = 0

    def put_right(self, choice: Document) -> Document:
        if "text" in choice:
            choice = with_offsets(choice, self._sent)
            return {**choice, "text": self._pass(choice["text"], choice)}
        # A null role comes beside each tool call; clients that add deltas up would take it for the role.
        delta = {key: value for key, value in choice["delta"].items() if key != "role" or value is not None}
        text = self._pass(delta.pop("content", None) or "", choice)
        return {**choice, "delta": {**delta, "content": text} if text or "role" in delta else delta}

    def _pass(self, text: str, choice: Document) -> str:
        """What of `text` may be sent; at a choice's end what was held back, unless a stop string ended it."""
        self._sent += len(text)
        sendable = self._filter.feed(text)
        if choice.get("finish_reason") and not isinstance(choice.get("matched_stop"), str):
            sendable += self._filter.flush()
        return sendable


async def put_right(stream: AsyncIterator[str], stops: Sequence[str]) -> AsyncGenerator[str]:
    """A stream's events without the beginnings of stop strings, with offsets, without null roles."""
    choices: defaultdict[int, _Choice] = defaultdict(lambda: _Choice(stops))
    async with aclosing(cast("AsyncGenerator[str]", stream)) as events:
        async for event in events:
            if not event.startswith('data: {"id"'):
                yield event
                continue
            chunk = json.loads(event.removeprefix("data: "))
            chunk["choices"] = [choices[choice["index"]].put_right(choice) for choice in chunk["choices"]]
            yield f"data: {json.dumps(chunk, ensure_ascii=False, separators=(',', ':'))}\n\n"
