"""A Triton Inference Server with TensorRT-LLM models as an engine, under the shared OpenAI layer.

Written to the contract of Triton's generate extension and of TensorRT-LLM's models for it; it has run against a
stand-in that keeps it.
"""

import asyncio
import json
import logging
import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from typing import Any, Literal

import httpx
from pydantic import Field, field_validator

from deployments import model_facts, models, triton_dialects
from deployments.engine import (
    Capabilities,
    EngineRequest,
    EngineResponse,
    PoolModel,
)
from deployments.event_stream import Lines, data_of
from deployments.openai_layer.layer import OpenAILayer
from deployments.openai_layer.text import Tokenizer
from deployments.openai_layer.tokens import Finish, Sampling, Token
from deployments.remote import RemoteEngine, document_of
from deployments.triton_dialects import Text
from deployments.upstream import Upstream
from deployments.upstream_args import UpstreamArgs
from deployments.upstream_errors import excerpt
from deployments.upstream_server import Reply
from deployments.upstream_stats import UpstreamStats

logger = logging.getLogger("ray.serve")

PENALTIES = ("frequency_penalty", "presence_penalty")
NAMES = {"ensemble": "ensemble", "llmapi": "tensorrt_llm"}


class TritonArgs(UpstreamArgs):
    """`engine_args` of a pool of Triton servers. The pool's `model` has the tokenizer and the chat template."""

    urls: tuple[str, ...] = Field(
        min_length=1,
        description="Where the servers are, `http://` or `https://` (`http://10.0.0.5:8000`). Each request goes to the "
        "healthy one with the fewest of this pool's.",
    )
    dialect: Literal["ensemble", "llmapi"] = Field(
        description="`ensemble`: a compiled engine, `ensemble` or `tensorrt_llm_bls`; `llmapi`: the PyTorch backend."
    )
    model_name: str | None = Field(
        None,
        pattern=r"^[A-Za-z0-9_.-]+$",
        description="The model's name in the repository; default: `ensemble`, or `tensorrt_llm` on `llmapi`.",
    )
    context_length: int = Field(ge=16, description="Most tokens of prompt and answer; no server tells it.")
    accumulates: bool = Field(
        False, description="Whether each event of a stream has all of the text (`accumulate_tokens` of the BLS model)."
    )
    adds_special_tokens: bool = Field(True, description="Whether the server puts a begin-of-sequence before a prompt.")
    guided_decoding: bool = Field(
        False, description="Whether the engine was set up with guided decoding; `ensemble` only."
    )
    metrics_port: int | None = Field(
        None, ge=1, le=65535, description="Port of the servers' Prometheus metrics, usually 8002, to read their counts."
    )
    health_path: str = Field("/v2/health/ready", pattern=r"^/[!-~]*$", description="Path of the health check.")

    @field_validator("guided_decoding")
    @classmethod
    def _where_it_can_be_asked_for(cls, value: bool, info: Any) -> bool:
        if value and info.data.get("dialect") == "llmapi":
            raise ValueError("the dialect llmapi has no way to ask for guided decoding")
        return value


class TritonEngine(RemoteEngine):
    """Triton servers that run elsewhere. While they are down, requests get a 503; this replica stays."""

    name = "triton"

    def __init__(self, model: PoolModel, args: TritonArgs) -> None:
        self._model = model
        self._args = args
        self._facts = model_facts.of(model)
        upstream = Upstream(args)
        program = None if args.metrics_port is None else "triton"
        super().__init__(upstream, UpstreamStats(upstream, program, args.metrics_port))
        self._path = f"/v2/models/{args.model_name or NAMES[args.dialect]}/generate_stream"
        self._tokenizer: Any = None
        self._layer: OpenAILayer | None = None
        self._cancels: set[asyncio.Task[None]] = set()
        self.context_length = args.context_length
        self.eos_token_ids: frozenset[int] = frozenset()  # the server ends answers, and their text has no end

    @property
    def tokenizer(self) -> Tokenizer:
        tokenizer: Tokenizer = self._tokenizer
        return tokenizer

    async def start(self) -> None:
        path = await asyncio.to_thread(models.resolve, self._model.source, self._model.revision)
        self._facts = model_facts.read(path)
        await asyncio.to_thread(self._load_tokenizer, path)
        await self._upstream.start()
        honours = (*PENALTIES, "response_format") if self._args.guided_decoding else PENALTIES
        self._layer = OpenAILayer(self, self._model.served_name, honours)

    def _load_tokenizer(self, path: Path) -> None:
        from transformers import AutoTokenizer

        self._tokenizer = AutoTokenizer.from_pretrained(path)

    async def handle(self, request: EngineRequest) -> EngineResponse:
        assert self._layer is not None, "start() comes first"
        return await self._layer.handle(request)

    async def generate(self, prompt: list[int], sampling: Sampling) -> AsyncGenerator[Token | Finish]:
        request_id = uuid.uuid4().hex
        body = triton_dialects.REQUESTS[self._args.dialect](self._text_of(prompt), sampling)
        data = json.dumps(body, ensure_ascii=False).encode()
        headers = {"triton-request-id": request_id}
        reply, finished = None, False
        try:
            reply = await self._upstream.send(self._path, data, request_id, at_root=True, headers=headers)
            text, events = Text(self._args.accumulates or self._args.dialect == "llmapi"), 0
            reason = None
            async with aclosing(self._events(reply)) as documents:
                async for document in documents:
                    events += 1
                    reason = triton_dialects.finish_of(document) or reason
                    if new := text.feed(document):
                        yield Token(-1, text=new)
            finished = True
            if rest := text.flush():
                yield Token(-1, text=rest)
            # No server counts: as many as the text is, and no fewer than there were events.
            count = max(events, len(self._tokenizer.encode(text.whole, add_special_tokens=False)))
            reason = reason or ("length" if count >= sampling.max_tokens else "stop")
            yield Finish(reason, min(count, sampling.max_tokens))
        finally:
            if reply is not None:
                await reply.aclose()
            if not finished and self._args.dialect == "llmapi":
                # Which server has it isn't known before one has answered; to the others the id says nothing.
                up = [server.root for server in self._upstream.servers if server.state == "up"]
                self._cancel(up if reply is None else [reply.server_root], headers)

    def _text_of(self, prompt: list[int]) -> str:
        """The prompt as text, without the token that the server puts before it again."""
        if self._args.adds_special_tokens and prompt[:1] == [self._tokenizer.bos_token_id]:
            prompt = prompt[1:]
        text: str = self._tokenizer.decode(prompt)
        return text

    async def _events(self, reply: Reply) -> AsyncGenerator[dict[str, Any]]:
        """The documents of a stream, which ends without a mark.

        Raises:
            ApiError: an error, with a status of its own or after the first event under HTTP 200.
        """
        limit = self._args.max_answer_bytes
        if reply.status != 200:
            body = await reply.read(limit)
            raise triton_dialects.error(reply.status, _message(body))
        lines = Lines(limit)
        async with aclosing(reply.chunks()) as chunks:
            async for chunk in chunks:
                for data in data_of(lines.feed(chunk)):
                    document = document_of(data)
                    if "error" in document:
                        raise triton_dialects.error(500, str(document["error"]))
                    yield document

    def _cancel(self, roots: list[str], headers: dict[str, str]) -> None:
        """Stop a request whose client has left; beside what is done now, and before this pool stops."""
        for root in roots:
            task = asyncio.create_task(self._send_cancel(root, headers))
            self._cancels.add(task)
            task.add_done_callback(self._cancels.discard)

    async def _send_cancel(self, root: str, headers: dict[str, str]) -> None:
        body = {"text_input": "", "stop": True}
        try:
            # It is answered by an error: that the request was cancelled.
            await self._upstream.client.post(
                root + self._path, json=body, headers=headers, timeout=self._args.connect_timeout_s
            )
        except httpx.HTTPError as error:
            logger.warning("Triton server %s wasn't told of a request that is cancelled: %r", root, error)

    def capabilities(self) -> Capabilities:
        return Capabilities(
            endpoints=OpenAILayer.ENDPOINTS if self._facts.chats else OpenAILayer.ENDPOINTS[1:],
            context_length=self._args.context_length,
            json_schema=self._args.guided_decoding,
            n=True,
        )

    async def stop(self) -> None:
        if self._layer is not None:
            self._layer.close()
        await asyncio.gather(*self._cancels)
        await super().stop()


def _message(body: bytes) -> str:
    """What an error says: `{"error": "..."}`."""
    try:
        return str(json.loads(body)["error"])
    except (ValueError, KeyError, TypeError):
        return excerpt(body) or "it didn't say why"
