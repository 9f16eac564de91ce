"""What a pool needs from an engine, and the types that cross between them. No engine is imported here."""

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args


@dataclass(frozen=True, slots=True)
class PoolModel:
    """The model of a pool."""

    source: str  # a local folder, a hub id, or a bundled model's name
    served_name: str  # the name that answers carry
    revision: str | None = None  # of a hub id: a branch, tag or commit


# What clients may ask for, by the path under /v1.
Endpoint = Literal[
    "chat/completions",
    "completions",
    "responses",  # OpenAI's Responses API
    "messages",  # Anthropic's Messages API
    "embeddings",
    "score",
    "rerank",
    "tokenize",
    "detokenize",
]
ENDPOINTS: tuple[Endpoint, ...] = get_args(Endpoint)

# Kinds of content parts in a message.
Part = Literal["text", "image", "audio", "video", "file"]


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """One client request, as it crosses from the ingress to an engine."""

    endpoint: Endpoint
    body: bytes  # the JSON document that the client sent, unchanged
    request_id: str  # unique while the request lives
    adapter: str | None = None  # the LoRA adapter that the request names instead of the pool's model


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
    """An engine's own count of its work, read at one moment. `metric_names` has each engine's own words for these."""

    running: int  # requests that hold KV cache now
    waiting: int  # requests accepted, not yet running
    kv_cache_usage: float | None = None  # share of the KV cache in use, 0 to 1; None: the engine doesn't tell
    prefix_hit_rate: float | None = None  # share of all prompt tokens since the start that the prefix cache had
    prompt_tokens: int = 0  # since the start
    generated_tokens: int = 0  # since the start


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a pool's engine can honour, with this model and these arguments. The rest is refused, never ignored."""

    endpoints: tuple[Endpoint, ...]
    context_length: int | None = None  # most tokens of prompt and answer together; None: unknown
    tools: tuple[Literal["auto", "forced"], ...] = ()  # the kinds of tool_choice
    json_schema: bool = False  # response_format is enforced while tokens are chosen
    logprobs: bool = False
    n: bool = False  # more than one choice a request
    parts: tuple[Part, ...] = ("text",)
    lora: bool = False  # adapters may be loaded and unloaded
    max_lora_rank: int | None = None  # the highest rank of an adapter; None: unknown, or there are no adapters


@dataclass(frozen=True, slots=True)
class Adapter:
    """A LoRA adapter: a model name of its own over the pool's model."""

    name: str
    path: Path  # a folder with adapter_config.json and adapter_model.safetensors


class EngineDeadError(RuntimeError):
    """The engine can't serve any more; its replica must be replaced."""


class Engine(ABC):
    """An engine inside a pool replica. Every method runs on the replica's one event loop."""

    headers: Mapping[str, str] = {}  # that every answer of its pool carries, errors too

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
    def capabilities(self) -> Capabilities:
        """What this engine can honour. Before it has started: as far as its arguments and the model's files tell."""

    async def load_adapter(self, adapter: Adapter) -> None:
        """Serve `adapter` under its name, beside what is served already. Its files have been checked.

        Raises:
            ApiError: 400, the engine refuses it, and nothing has changed.
        """
        raise NotImplementedError("an engine without the capability 'lora' is asked for no adapter")

    async def unload_adapter(self, name: str) -> None:
        """Stop serving an adapter that was loaded."""
        raise NotImplementedError("an engine without the capability 'lora' is asked for no adapter")

    @abstractmethod
    async def stop(self) -> None:
        """Stop, and leave no process and no GPU memory behind. Safe to call twice, or after a failed start."""
