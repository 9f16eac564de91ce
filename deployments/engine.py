"""What a pool needs from an engine, and the types that cross between them. No engine is imported here."""

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True)
class PoolModel:
    """The model of a pool."""

    source: str  # a local folder, a hub id, or a bundled model's name
    served_name: str  # the name that answers carry
    revision: str | None = None  # of a hub id: a branch, tag or commit


Endpoint = Literal["chat/completions", "completions"]


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """One client request, as it crosses from the ingress to an engine."""

    endpoint: Endpoint
    body: bytes  # the JSON document that the client sent, unchanged
    request_id: str  # unique while the request lives


@dataclass(frozen=True, slots=True)
class EngineResponse:
    """An engine's answer: one JSON document, or a stream of wire-ready bytes.

    Closing the stream, or cancelling the task that reads it, aborts generation: there is no other way to abort.
    """

    body: bytes | AsyncIterator[bytes]
    status: int = 200
    media_type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EngineStats:
    """An engine's own count of its work, read at one moment."""

    running: int  # requests that hold KV cache now
    waiting: int  # requests accepted, not yet running


class EngineDeadError(RuntimeError):
    """The engine can't serve any more; its replica must be replaced."""


class Engine(ABC):
    """An engine inside a pool replica. Every method runs on the replica's one event loop."""

    @abstractmethod
    async def start(self) -> None:
        """Load the model and answer one short request, so that the first client pays for nothing.

        Raises:
            ModelNotFoundError: the model can't be had here.
            ValueError: the engine refuses its arguments; the message names the argument.
        """

    @abstractmethod
    async def handle(self, request: EngineRequest) -> EngineResponse:
        """Answer a request. A stream's first byte may still be far away when this returns.

        Raises:
            ApiError: what OpenAI's API would answer with an error envelope.
        """

    @abstractmethod
    async def health(self) -> None:
        """Return if the engine can serve.

        Raises:
            EngineDeadError: it can't, and won't recover.
        """

    @abstractmethod
    async def stats(self) -> EngineStats: ...

    @abstractmethod
    async def stop(self) -> None:
        """Stop, and leave no process and no GPU memory behind. Safe to call twice, or after a failed start."""
