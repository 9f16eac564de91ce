"""Text Generation Inference as an engine: its servers run elsewhere, and what is odd of their answers is put right.

Written to the contract of TGI 3.3 (its published API, and answers that its servers gave); it has run against a
stand-in that keeps it.
"""

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any, Self

import aiohttp
from pydantic import Field, model_validator

from deployments import tgi_answers, tgi_requests
from deployments.engine import (
    Capabilities,
    Endpoint,
    EngineDeadError,
    EngineRequest,
    EngineResponse,
    PoolModel,
)
from deployments.errors import ApiError, error_event
from deployments.event_stream import BROKEN, MEDIA_TYPE, Lines, ReplyStream, data_of
from deployments.openai_layer.documents import DONE, event
from deployments.own_answers import PROMPT_FIELDS
from deployments.remote import RemoteEngine, document_of
from deployments.tgi_launcher import Launcher, TgiLaunch
from deployments.tgi_native import Native
from deployments.tgi_requests import Limits, Terms
from deployments.upstream import DOCUMENT_LIMIT, Upstream
from deployments.upstream_args import UpstreamArgs
from deployments.upstream_errors import error_answer, excerpt
from deployments.upstream_server import Reply, Server, bad_gateway
from deployments.upstream_stats import UpstreamStats

logger = logging.getLogger("ray.serve")

LOADING_S = 1800  # for a server to fetch and load its model


class TgiArgs(UpstreamArgs):
    """`engine_args` of a pool of TGI servers. The pool's `model` is for people: a server has one model."""

    urls: tuple[str, ...] = Field(
        (),
        description="Where the servers are, `http://` or `https://` (`http://10.0.0.5:8080`). Each request goes to the "
        "healthy one with the fewest of this pool's.",
    )
    launch: TgiLaunch | None = Field(
        None,
        description="Instead of `urls`: start a server of the replica's own on loopback, with these flags of "
        "`text-generation-launcher` (`{}` for its defaults), where that is installed. `model` is what it loads; "
        f"`start_timeout_s` is {LOADING_S} by default then.",
    )
    adapter_id: str | None = Field(
        None,
        min_length=1,
        description="The LoRA adapter that this pool asks for, of those that the servers were started with "
        "(`--lora-adapters`); a pool without one has the model itself.",
    )

    def gpus(self) -> int:
        return 0 if self.launch is None else self.launch.num_shard or 1

    @model_validator(mode="after")
    def _has_servers(self) -> Self:
        if bool(self.urls) == (self.launch is not None):
            raise ValueError("give either 'urls', of servers that run elsewhere, or 'launch', to start one here")
        return self


class TgiEngine(RemoteEngine):
    """TGI servers that run elsewhere: while they are down, requests get a 503; this replica stays. Or one that this
    replica has started: without it, the replica is replaced."""

    name = "tgi"

    def __init__(self, model: PoolModel, args: TgiArgs) -> None:
        self._model = model
        self._args = args
        self._launcher = None if args.launch is None else Launcher(args.launch, model)
        # A full queue turns a server's health red (TGI issue 3241).
        upstream = Upstream(_reach(args, self._launcher), red_when_busy=True)
        super().__init__(upstream, UpstreamStats(upstream, "tgi"))
        self._native = Native(upstream, args)
        self._limits = Limits()

    async def start(self) -> None:
        await self._native.start()
        await self._start_servers()
        up = [server for server in self._upstream.servers if server.state == "up"]
        told = [limits for limits in await asyncio.gather(*map(self._told_limits, up)) if limits is not None]
        self._limits = tgi_requests.least(told)

    async def _start_servers(self) -> None:
        if self._launcher is None:
            await self._upstream.start()
            return
        await self._launcher.start()
        ended = asyncio.create_task(self._launcher.ended())
        starting = asyncio.create_task(self._upstream.start())
        try:
            await asyncio.wait({ended, starting}, return_when=asyncio.FIRST_COMPLETED)
            for task in (ended, starting):
                if task.done():
                    task.result()
        finally:
            for task in (ended, starting):
                task.cancel()
            await asyncio.gather(ended, starting, return_exceptions=True)

    async def health(self) -> None:
        await super().health()
        if self._launcher is not None:
            self._launcher.raise_if_ended()
            [server] = self._upstream.servers
            if server.state == "down":
                raise EngineDeadError(f"the TGI server of this replica doesn't answer: {server.reason}")

    async def stop(self) -> None:
        await super().stop()
        if self._launcher is not None:
            await self._launcher.stop()

    async def _told_limits(self, server: Server) -> Limits | None:
        try:
            return tgi_requests.limits_of(json.loads(await self._upstream.get(f"{server.root}/info", DOCUMENT_LIMIT)))
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            logger.warning("TGI server %s doesn't tell its limits: %s", server.url, type(error).__name__)
            return None

    async def handle(self, request: EngineRequest) -> EngineResponse:
        terms = Terms(self.name, self._limits, self._args.adapter_id)
        if request.endpoint == "chat/completions":
            return await self._relay(request, tgi_requests.chat(request.body, terms))
        asked = tgi_requests.read_completion(request.body, terms)
        if tgi_requests.needs_native(asked):
            return await self._native.complete(asked, terms, request, self._model.served_name)
        return await self._relay(request, tgi_requests.completion(asked, terms))

    async def _relay(self, request: EngineRequest, body: dict[str, Any]) -> EngineResponse:
        """By the servers' own OpenAI routes."""
        data = json.dumps(body, ensure_ascii=False).encode()
        reply = await self._upstream.send(f"/v1/{request.endpoint}", data, request.request_id, at_root=True)
        chat = request.endpoint == "chat/completions"
        renamer = tgi_answers.Renamer(request.request_id, self._model.served_name, chat=chat)
        if body.get("stream") and reply.status == 200 and reply.media_type == MEDIA_TYPE:
            events = ReplyStream(reply, self._events(reply, renamer, request.endpoint, "stream_options" in body))
            return EngineResponse(events, media_type=MEDIA_TYPE)
        async with aclosing(reply):
            document = await self._document(reply, request.endpoint)
        return EngineResponse(json.dumps(renamer.whole(document), ensure_ascii=False).encode())

    async def _document(self, reply: Reply, endpoint: Endpoint) -> dict[str, Any]:
        """A whole answer.

        Raises:
            ApiError: it is none.
        """
        body = await reply.read(self._args.max_answer_bytes)
        try:
            document = json.loads(body)
        except ValueError:
            document = None
        if reply.status != 200:
            if isinstance(document, dict) and isinstance(document.get("error"), str):
                raise _error(document, endpoint, reply.status)
            # A bare 401, or plain text where a body was no JSON.
            error_answer(reply.status, reply.headers, body, endpoint, self._upstream.api_key)
        if not isinstance(document, dict) or "choices" not in document:
            raise bad_gateway(f"The TGI server answered with no completion: {excerpt(body)}")
        return document

    async def _events(
        self, reply: Reply, renamer: tgi_answers.Renamer, endpoint: Endpoint, include_usage: bool
    ) -> AsyncGenerator[bytes]:
        """The events of a stream.

        Raises:
            ApiError: nothing has been sent yet.
            ConnectionError: the stream broke after it began.
        """
        lines, sent = Lines(self._args.max_answer_bytes), False
        async with aclosing(reply.chunks()) as chunks:
            async for chunk in chunks:
                for data in data_of(lines.feed(chunk)):
                    if data == b"[DONE]":
                        for part in renamer.rest(include_usage):
                            yield event(part)
                        yield DONE
                        return
                    document = document_of(data)
                    if "error" in document:  # under HTTP 200, whatever it is
                        failure = _error(document, endpoint, 500)
                        if not sent:
                            raise failure
                        # Without the [DONE] that TGI sends after it: a client would take it for a whole answer.
                        yield error_event(failure.message, "engine_error")
                        return
                    for part in renamer.chunks(document):
                        sent = True
                        yield event(part)
        if not sent:
            raise bad_gateway(BROKEN)
        raise ConnectionError(BROKEN)

    def capabilities(self) -> Capabilities:
        return Capabilities(
            endpoints=("chat/completions", "completions"),
            context_length=self._limits.max_total_tokens,
            tools=("auto", "forced"),
            json_schema=True,
            logprobs=True,
        )


def _reach(args: TgiArgs, launcher: Launcher | None) -> TgiArgs:
    """The args by which the servers are reached."""
    if launcher is None:
        return args
    waits = args.start_timeout_s if "start_timeout_s" in args.model_fields_set else LOADING_S
    return args.model_copy(update={"urls": (launcher.url,), "start_timeout_s": waits})


def _error(document: Mapping[str, Any], endpoint: Endpoint, status: int) -> ApiError:
    """An error in either of TGI's forms: its own, or in a chat's stream one like OpenAI's."""
    told = document["error"]
    if isinstance(told, dict):
        code = told.get("http_status_code")
        return tgi_answers.error(
            code if isinstance(code, int) and code >= 400 else status,
            str(told.get("message")),
            None,
            PROMPT_FIELDS[endpoint],
        )
    kind = document.get("error_type")
    return tgi_answers.error(status, str(told), kind if isinstance(kind, str) else None, PROMPT_FIELDS[endpoint])
