"""Deltas to OpenAI's answer documents, whole and in chunks, for chat and for completions."""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from deployments.openai_layer.choice import Delta, Usage
from deployments.openai_layer.logprobs import Spell, chat_logprobs, completion_logprobs

DONE = b"data: [DONE]\n\n"


def event(document: dict[str, Any]) -> bytes:
    """A server-sent event."""
    return b"data: " + json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"


class Documents(Protocol):
    """How one endpoint writes its answers."""

    def opening(self, choices: int) -> list[dict[str, Any]]:
        """Chunks that come before the first token."""
        ...

    def chunk(self, index: int, delta: Delta) -> dict[str, Any]: ...

    def usage_chunk(self, usage: Usage) -> dict[str, Any]: ...

    def whole(self, choices: Sequence[Delta], usage: Usage) -> dict[str, Any]: ...


@dataclass(slots=True)
class _Base:
    id: str
    model: str
    spell: Spell
    logprobs: bool
    created: int = field(default_factory=lambda: int(time.time()))

    def _document(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model, "choices": choices}


@dataclass(slots=True)
class ChatDocuments(_Base):
    """`chat.completion` and `chat.completion.chunk`."""

    def opening(self, choices: int) -> list[dict[str, Any]]:
        delta = {"role": "assistant", "content": ""}
        return [self._chunk(self._choice(index, delta, None, None)) for index in range(choices)]

    def chunk(self, index: int, delta: Delta) -> dict[str, Any]:
        logprobs = chat_logprobs(self.spell, delta.tokens) if self.logprobs and delta.tokens else None
        content = {"content": delta.text} if delta.text else {}
        return self._chunk(self._choice(index, content, logprobs, delta.finish_reason))

    def usage_chunk(self, usage: Usage) -> dict[str, Any]:
        return {**self._document("chat.completion.chunk", []), "usage": usage.document()}

    def whole(self, choices: Sequence[Delta], usage: Usage) -> dict[str, Any]:
        documents = [self._whole_choice(index, choice) for index, choice in enumerate(choices)]
        return {**self._document("chat.completion", documents), "usage": usage.document()}

    def _whole_choice(self, index: int, choice: Delta) -> dict[str, Any]:
        return {
            "index": index,
            "message": {"role": "assistant", "content": choice.text, "refusal": None},
            "logprobs": chat_logprobs(self.spell, choice.tokens) if self.logprobs else None,
            "finish_reason": choice.finish_reason,
        }

    def _chunk(self, choice: dict[str, Any]) -> dict[str, Any]:
        return self._document("chat.completion.chunk", [choice])

    @staticmethod
    def _choice(index: int, delta: dict[str, str], logprobs: Any, finish_reason: str | None) -> dict[str, Any]:
        return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}


@dataclass(slots=True)
class CompletionDocuments(_Base):
    """`text_completion`, whole and in chunks. `echoes` are the texts to put before each choice's own."""

    echoes: Sequence[str] = ()

    def opening(self, choices: int) -> list[dict[str, Any]]:
        return [self.chunk(index, Delta(echo)) for index, echo in enumerate(self.echoes) if echo]

    def chunk(self, index: int, delta: Delta) -> dict[str, Any]:
        return self._document("text_completion", [self._choice(index, delta)])

    def usage_chunk(self, usage: Usage) -> dict[str, Any]:
        return {**self._document("text_completion", []), "usage": usage.document()}

    def whole(self, choices: Sequence[Delta], usage: Usage) -> dict[str, Any]:
        documents = [
            self._choice(index, replace(choice, text=self._echo(index) + choice.text))
            for index, choice in enumerate(choices)
        ]
        return {**self._document("text_completion", documents), "usage": usage.document()}

    def _choice(self, index: int, delta: Delta) -> dict[str, Any]:
        offsets = [len(self._echo(index)) + start for start in delta.starts]
        logprobs = completion_logprobs(self.spell, delta.tokens, offsets) if self.logprobs else None
        return {"index": index, "text": delta.text, "logprobs": logprobs, "finish_reason": delta.finish_reason}

    def _echo(self, index: int) -> str:
        return self.echoes[index] if self.echoes else ""
