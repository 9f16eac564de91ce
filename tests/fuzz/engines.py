"""Engines for what the simulated one leaves out: one under our layer with all that the layer can, one with a layer of
its own for every endpoint."""

import asyncio
import json
from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from deployments.engine import (
    ENDPOINTS,
    Adapter,
    Capabilities,
    Engine,
    EngineRequest,
    EngineResponse,
    EngineStats,
)
from deployments.openai_layer.layer import OpenAILayer
from deployments.own_layer import Handler, OwnLayer
from deployments.simulated import SimulatedEngine

HONOURS = ("frequency_penalty", "presence_penalty", "response_format")


class AbleEngine(SimulatedEngine):
    """The simulated engine, which says that it honours all that our layer knows, and takes adapters."""

    async def start(self) -> None:
        await super().start()
        self._layer = OpenAILayer(self, self._model.served_name, HONOURS)

    def capabilities(self) -> Capabilities:
        return replace(super().capabilities(), json_schema=True, lora=True, max_lora_rank=64)

    async def load_adapter(self, adapter: Adapter) -> None: ...

    async def unload_adapter(self, name: str) -> None: ...


class Asked(BaseModel):
    """A request as engines' own layers have them: types that coerce, unions, fields that are kept unknown."""

    model_config = ConfigDict(extra="allow")

    model: str | None = None
    request_id: str = "none"
    stream: bool = False
    messages: list[dict[str, Any]] | None = None
    prompt: str | list[str] | list[int] | list[list[int]] | None = None
    input: str | list[Any] | None = None
    query: str | dict[str, Any] | None = None
    documents: list[str | dict[str, Any]] | None = None
    top_n: int = 0
    text_1: str | list[str] | None = None
    text_2: str | list[str] | None = None
    system: str | list[dict[str, Any]] | None = None
    instructions: str | None = None
    tokens: list[int] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: Literal["none", "auto", "required"] | dict[str, Any] | None = None
    response_format: dict[str, Any] | None = None
    logit_bias: dict[str, float] | None = None
    max_tokens: int | None = None
    max_output_tokens: int | None = None
    temperature: float | None = Field(None, ge=0, le=2)
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = None


class Said(BaseModel):
    id: str = "1"
    object: str = "answer"


class OwnEngine(Engine):
    """Answers everything that parses."""

    def __init__(self) -> None:
        handler = Handler(Asked, self._answer)
        self._layer = OwnLayer("own", "own", dict.fromkeys(ENDPOINTS, handler))

    async def start(self) -> None: ...

    async def handle(self, request: EngineRequest) -> EngineResponse:
        return await self._layer.handle(request)

    async def _answer(self, asked: Asked) -> Any:
        await asyncio.sleep(0)
        return self._events() if asked.stream else Said()

    async def _events(self) -> AsyncGenerator[str]:
        chunk = {"choices": [{"index": 0, "delta": {"content": "x"}, "finish_reason": None}]}
        for event in (json.dumps(chunk), "[DONE]"):
            yield f"data: {event}\n\n"

    async def health(self) -> None: ...

    async def stats(self) -> EngineStats:
        return EngineStats(0, 0)

    def capabilities(self) -> Capabilities:
        return Capabilities(
            ENDPOINTS, 4096, tools=("auto", "forced"), json_schema=True, logprobs=True, n=True, parts=("text", "image")
        )

    async def stop(self) -> None: ...
