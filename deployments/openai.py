"""Any OpenAI-compatible server as an engine: its answers pass through, byte for byte but for the model's name."""

import asyncio
import json
import logging
from contextlib import aclosing
from typing import Any, Literal

import aiohttp
from pydantic import Field, field_validator

from deployments import metric_names
from deployments.engine import (
    Capabilities,
    Endpoint,
    EngineRequest,
    EngineResponse,
    Part,
    PoolModel,
)
from deployments.errors import ApiError
from deployments.event_stream import MEDIA_TYPE, Relay
from deployments.model_name import answer_renamer, asks_to_stream, fields_of, replace_model
from deployments.reach import WATCHED, refuse_reserved
from deployments.remote import RemoteEngine
from deployments.upstream import DOCUMENT_LIMIT, Upstream
from deployments.upstream_args import UpstreamArgs
from deployments.upstream_errors import error_answer
from deployments.upstream_server import Reply, Server, bad_gateway
from deployments.upstream_stats import UpstreamStats

logger = logging.getLogger("ray.serve")

AT_ROOT = frozenset({"tokenize", "detokenize"})  # endpoints that servers have beside `/v1`, not under it


class OpenAIArgs(UpstreamArgs):
    """`engine_args` of a pool of servers that run elsewhere and speak OpenAI's API. The pool's `model` is the name
    that they know. What they can honour is said here, for nobody can ask them."""

    endpoints: tuple[Endpoint, ...] = Field(
        ("chat/completions", "completions"), min_length=1, description="What the servers have, by its path under `/v1`."
    )
    tools: tuple[Literal["auto", "forced"], ...] = Field(
        ("auto", "forced"), description="Kinds of `tool_choice` that the servers honour."
    )
    json_schema: bool = Field(True, description="Whether they enforce `response_format`.")
    logprobs: bool = Field(True, description="Whether they give `logprobs`.")
    n: bool = Field(True, description="Whether they give more than one choice.")
    parts: tuple[Part, ...] = Field(("text",), min_length=1, description="Kinds of content parts that they take.")
    context_length: int | None = Field(
        None, ge=1, description="Most tokens of prompt and answer; default: what their list of models says, if it does."
    )
    metrics: str | None = Field(
        None,
        description="The program that runs there, if its metrics are to be read: "
        + ", ".join(f"`{engine}`" for engine in metric_names.ENGINES)
        + ".",
    )

    @field_validator("metrics")
    @classmethod
    def _has_metrics(cls, value: str | None) -> str | None:
        if value is not None and value not in metric_names.ENGINES:
            raise ValueError(f"no metric names of '{value}' are known; there are: {', '.join(metric_names.ENGINES)}")
        return value


class OpenAIEngine(RemoteEngine):
    """Servers that run elsewhere. While they are down, requests get a 503; this replica stays."""

    name = "openai"

    def __init__(self, model: PoolModel, args: OpenAIArgs) -> None:
        self._model = model
        self._args = args
        upstream = Upstream(args)
        super().__init__(upstream, UpstreamStats(upstream, args.metrics))
        self._rename = answer_renamer(model.source, model.served_name)
        self._context_length = args.context_length

    async def start(self) -> None:
        await self._upstream.start()
        listed = await asyncio.gather(*map(self._listed_model, self._upstream.servers))
        lengths = [length for model in listed if isinstance(length := model.get("max_model_len"), int)]
        if self._context_length is None:
            self._context_length = min(lengths, default=None)

    async def _listed_model(self, server: Server) -> dict[str, Any]:
        """What a server's list of models says of this model; nothing where it has no such list."""
        if server.state != "up":
            return {}
        try:
            document = json.loads(await self._upstream.get(f"{server.url}/models", DOCUMENT_LIMIT))
            models = {model["id"]: model for model in document["data"]}
        except (aiohttp.ClientError, TimeoutError, ValueError, TypeError, KeyError) as error:
            logger.info("remote server %s doesn't list its models: %s", server.url, type(error).__name__)
            return {}
        if self._model.source not in models:
            logger.warning("remote server %s doesn't list the model '%s'", server.url, self._model.source)
        found: dict[str, Any] = models.get(self._model.source, {})
        return found

    async def handle(self, request: EngineRequest) -> EngineResponse:
        try:
            for name, value in fields_of(request.body, WATCHED):
                refuse_reserved(name, value)
            body = replace_model(request.body, self._model.source)
            streams = asks_to_stream(request.body)
        except ValueError as error:
            raise ApiError(400, f"The request body is not a JSON object: {error}.") from error
        at_root = request.endpoint in AT_ROOT
        reply = await self._upstream.send(f"/{request.endpoint}", body, request.request_id, at_root=at_root)
        if streams and reply.status == 200 and reply.media_type == MEDIA_TYPE:
            relay = Relay(reply, request.endpoint, self._rename, self._args.max_answer_bytes)
            return EngineResponse(relay, media_type=MEDIA_TYPE)
        async with aclosing(reply):
            return await self._whole(reply, request.endpoint)

    async def _whole(self, reply: Reply, endpoint: Endpoint) -> EngineResponse:
        body = await reply.read(self._args.max_answer_bytes)
        if not 200 <= reply.status < 300:
            return error_answer(reply.status, reply.headers, self._rename(body), endpoint, self._upstream.api_key)
        if reply.media_type != "application/json":
            raise bad_gateway(f"The remote server answered with '{reply.media_type[:50]}', not with JSON.")
        return EngineResponse(self._rename(body), reply.status)

    def capabilities(self) -> Capabilities:
        args = self._args
        return Capabilities(
            endpoints=args.endpoints,
            context_length=self._context_length,
            tools=args.tools,
            json_schema=args.json_schema,
            logprobs=args.logprobs,
            n=args.n,
            parts=args.parts,
        )
