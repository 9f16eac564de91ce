"""A request, read once: all that it is routed and admitted by."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pydantic import ConfigDict, ValidationError

from deployments.capabilities import Asked, Need, may_need, needs_of
from deployments.engine import Endpoint
from deployments.errors import ApiError, from_validation_error

EMBEDDING: frozenset[Endpoint] = frozenset({"embeddings", "score", "rerank"})
# A value takes a hundred bytes here, and a microsecond in which no other request is looked at.
MAX_VALUES = 1_000_000
MOST_TOKENS = 2**63 - 1  # that a request may ask for; more is for the engine to refuse, and no number to count with
# The fields that bound an answer, by the first that is there.
_MOST_TOKENS = ("max_completion_tokens", "max_tokens", "max_output_tokens")


class Document(Asked):
    """A request's body, of any endpoint. What isn't for routing, and most types, are for the engine to judge."""

    model_config = ConfigDict(strict=True)

    model: str
    stream: bool | None = None
    system: Any = None  # of Anthropic's API
    instructions: Any = None  # of the Responses API
    prompt: Any = None
    query: Any = None
    documents: Any = None
    max_completion_tokens: Any = None
    max_tokens: Any = None
    max_output_tokens: Any = None
    metadata: Any = None
    service_tier: Any = None
    prompt_cache_key: Any = None

    def metadatum(self, name: str) -> str | None:
        value = self.metadata.get(name) if isinstance(self.metadata, dict) else None
        return value if isinstance(value, str) else None


@dataclass(frozen=True, slots=True)
class Request:
    """What a client asks, beyond the bytes."""

    endpoint: Endpoint
    document: Document
    stream: bool
    messages: int
    prompt_tokens: int  # estimated
    max_tokens: int | None  # of each of its choices; None: it doesn't say
    choices: int
    needs: frozenset[Need]

    @property
    def model(self) -> str:
        return self.document.model


def most_tokens(prompt_tokens: int, max_tokens: int | None, choices: int, default: int) -> int:
    """Tokens of a prompt and of all that may be generated; `default` where the request doesn't say how many may."""
    return prompt_tokens + choices * (default if max_tokens is None else max_tokens)


def read_request(endpoint: Endpoint, body: bytes, characters_per_token: float = 4.0) -> Request:
    """Parse a request's body, once, for what it is routed and admitted by.

    Raises:
        ApiError: 400; the body isn't a JSON object, has too many values, or `model` or `stream` are missing or of a
            wrong type.
    """
    if body.count(b",") >= MAX_VALUES:  # those in texts, too: a text with so many has more tokens than any model takes
        message = f"The request body has {MAX_VALUES} commas or more: too many values."
        raise ApiError(400, message, code="too_many_values")
    try:
        document = Document.model_validate_json(body)
    except ValidationError as error:
        raise from_validation_error(error, ()) from None
    n = document.n
    return Request(
        endpoint,
        document,
        bool(document.stream),
        len(document.messages) if isinstance(document.messages, list) else 0,
        prompt_tokens(document, characters_per_token),
        max_tokens(document),
        n if isinstance(n, int) and 1 < n <= 128 else 1,
        frozenset(needed.what for needed in needs_of(document)) if may_need(body) else frozenset(),
    )


def max_tokens(document: Document) -> int | None:
    """Most tokens of an answer, where the request says it."""
    for name in _MOST_TOKENS:
        value = getattr(document, name)
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            return min(value, MOST_TOKENS)
    return None


def prompt_tokens(document: Document, characters_per_token: float) -> int:
    """Tokens of the prompt: exact where it is token ids, else estimated from its characters."""
    characters = ids = 0
    for piece in pieces(document):
        if isinstance(piece, str):
            characters += len(piece)
        else:
            ids += 1
    return ids + -int(-characters // characters_per_token)


def pieces(document: Document) -> Iterator[str | int]:
    """A prompt's texts and token ids, in their order."""
    for field in (
        document.system,
        document.instructions,
        document.messages,
        document.prompt,
        document.input,
        document.query,
        document.documents,
    ):
        if field is not None:
            yield from _pieces(field)


def _pieces(node: Any) -> Iterator[str | int]:
    """Those of a field: itself, a list, messages, or content parts. Of images and the like, nothing."""
    if isinstance(node, str | int):
        yield node
    elif isinstance(node, list):
        for item in node:
            yield from _pieces(item)
    elif isinstance(node, dict):
        for name in ("content", "text"):
            if name in node:
                yield from _pieces(node[name])


def opening(document: Document, characters: int) -> str | None:
    """What a prompt begins with, so long; None where it is shorter."""
    taken, length = [], 0
    for piece in pieces(document):
        text = piece if isinstance(piece, str) else f"{piece},"
        taken.append(text)
        length += len(text)
        if length >= characters:
            return "\0".join(taken)[:characters]
    return None


def conversation_of(document: Document, header: str | None = None) -> str:
    """What is the same in all requests of a conversation: what the client calls it, else how it begins."""
    named = header or document.metadatum("conversation_id") or document.prompt_cache_key
    if isinstance(named, str) and named:
        return f"named {named}"
    if isinstance(document.messages, list):
        first = next((at for at, message in enumerate(document.messages) if _role(message) == "user"), 0)
        begins: Any = [document.system, document.messages[: first + 1]]
    else:
        begins = [document.instructions, document.prompt, document.input, document.query]
    return "begins " + "\0".join(map(str, _pieces(begins)))


def _role(message: Any) -> Any:
    return message.get("role") if isinstance(message, dict) else None
