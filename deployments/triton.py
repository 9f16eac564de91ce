"""A Triton Inference Server with TensorRT-LLM models as an engine, under the shared OpenAI layer.

Written to the contract of Triton's generate extension and of TensorRT-LLM's models for it; it has run against a
stand-in that keeps it.

How an answer whose client has left is stopped: Triton notices a closed connection when it next writes to it. That
ends a request of `llmapi`, but not the step of an ensemble that is under way. So the model that generates is told, too,
under the id that the request has there. `tensorrt_llm_bls` gives its requests ids of its own, and can't be stopped.
"""

import asyncio
import json
import logging
import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from typing import Any, Literal

import aiohttp
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
from deployments.triton_cancel import Cancels
from deployments.triton_dialects import ID_HEADER, PENALTIES, Text, TritonError
from deployments.upstream import DOCUMENT_LIMIT, Upstream
from deployments.upstream_args import UpstreamArgs
from deployments.upstream_server import Reply, Server
from deployments.upstream_stats import UpstreamStats

logger = logging.getLogger("ray.serve")

NAME = r"^[A-Za-z0-9_.-]+$"
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
        pattern=NAME,
        description="The model's name in the repository; default: `ensemble`, or `tensorrt_llm` on `llmapi`. An "
        "answer of `tensorrt_llm_bls` is generated to its end even where the client leaves.",
    )
    tensorrt_llm_model_name: str = Field(
        "tensorrt_llm",
        pattern=NAME,
        description="The name of the model that generates, behind `ensemble`: it is told when a client has left.",
    )
    context_length: int = Field(ge=16, description="Most tokens of prompt and answer; no server tells it.")
    accumulates: bool = Field(
        False,
        description="Whether each event of a stream has all of the text (`accumulate_tokens` of the BLS model). Where "
        "it hasn't, a character of several tokens comes as `\ufffd`, and SentencePiece's words without their spaces.",
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
        self._model_path = f"/v2/models/{args.model_name or NAMES[args.dialect]}"
        stops_at = self._model_path if args.dialect == "llmapi" else f"/v2/models/{args.tensorrt_llm_model_name}"
        stop = triton_dialects.stop(args.dialect)
        self._cancels = Cancels(upstream, f"{stops_at}/generate_stream", stop, args.connect_timeout_s)
        self._tokenizer: Any = None
        self._layer: OpenAILayer | None = None
        self._server_adds: list[int] = []  # the token that the server puts before a prompt
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
        penalties = await self._penalties()
        honours = (*penalties, "response_format") if self._args.guided_decoding else penalties
        self._layer = OpenAILayer(self, self._model.served_name, honours)

    def _load_tokenizer(self, path: Path) -> None:
        from transformers import AutoTokenizer

        self._tokenizer = AutoTokenizer.from_pretrained(path)
        first = self._tokenizer.encode("")[:1]  # a tokenizer may know a begin-of-sequence and not put it
        if self._args.adds_special_tokens and first == [self._tokenizer.bos_token_id]:
            self._server_adds = first

    async def _penalties(self) -> tuple[str, ...]:
        """The penalties that the model takes on every server that is up.

        Raises:
            ValueError: it hasn't an input that this pool needs, and would answer as if nothing had been said.
        """
        up = [server for server in self._upstream.servers if server.state == "up"]
        taken = [await self._penalties_at(server) for server in up]
        return tuple(name for name in PENALTIES if all(name in names for names in taken))

    async def _penalties_at(self, server: Server) -> tuple[str, ...]:
        try:
            document = json.loads(await self._upstream.get(server.root + self._model_path, DOCUMENT_LIMIT))
            inputs = frozenset(str(entry["name"]) for entry in document["inputs"])
        except (aiohttp.ClientError, TimeoutError, ValueError, TypeError, KeyError) as error:
            logger.warning("Triton server %s doesn't say what %s takes: %r", server.root, self._model_path, error)
            return PENALTIES
        if missing := triton_dialects.missing_inputs(self._args.dialect, inputs, self._args.guided_decoding):
            which = f"'dialect' {self._args.dialect}, 'guided_decoding' {self._args.guided_decoding}"
            raise ValueError(f"{server.root}{self._model_path} has no input {', '.join(missing)}, as {which} need")
        return triton_dialects.penalties_of(self._args.dialect, inputs)

    async def handle(self, request: EngineRequest) -> EngineResponse:
        assert self._layer is not None, "start() comes first"
        return await self._layer.handle(request)

    async def generate(self, prompt: list[int], sampling: Sampling) -> AsyncGenerator[Token | Finish]:
        request_id = uuid.uuid4().hex
        body = {"id": request_id, **triton_dialects.REQUESTS[self._args.dialect](self._text_of(prompt), sampling)}
        data = json.dumps(body, ensure_ascii=False).encode()
        path = f"{self._model_path}/generate_stream"
        reply, over = None, False
        try:
            headers = {ID_HEADER: request_id}
            reply = await self._upstream.send(path, data, request_id, at_root=True, headers=headers)
            async with aclosing(self._answer(reply, sampling.max_tokens)) as answer:
                async for item in answer:
                    over = isinstance(item, Finish)
                    yield item
        except TritonError:
            over = True
            raise
        finally:
            if reply is not None:
                await reply.aclose()
            if not over:  # which server has it isn't known before one has answered
                up = [server.root for server in self._upstream.servers if server.state == "up"]
                self._cancels.send(up if reply is None else [reply.server_root], request_id)

    async def _answer(self, reply: Reply, max_tokens: int) -> AsyncGenerator[Token | Finish]:
        text = Text(self._args.accumulates or self._args.dialect == "llmapi")
        reason, events = None, 0
        told: int | None = None  # tokens, where the server counts them
        shown = 0  # of those
        async with aclosing(self._events(reply)) as documents:
            async for document in documents:
                events += 1
                reason = triton_dialects.finish_of(document) or reason
                if (tokens := triton_dialects.tokens_of(document)) is not None:
                    told = (told or 0) + tokens
                if new := text.feed(document):
                    yield Token(-1, text=new, count=self._count(new) if told is None else told - shown)
                    shown = told or 0
        if rest := text.flush():
            yield Token(-1, text=rest, count=0)
        # Where the server doesn't count: as many as the text is, and no fewer than there were events.
        count = max(events, self._count(text.whole)) if told is None else told
        reason = reason or ("length" if count >= max_tokens else "stop")
        yield Finish(reason, min(count, max_tokens))

    def _count(self, text: str) -> int:
        return len(self._tokenizer.encode(text, add_special_tokens=False))

    def _text_of(self, prompt: list[int]) -> str:
        """The prompt as text, without the token that the server puts before it again."""
        added = len(self._server_adds)
        if prompt[:added] == self._server_adds:
            prompt = prompt[added:]
        text: str = self._tokenizer.decode(prompt, clean_up_tokenization_spaces=False)
        return text

    async def _events(self, reply: Reply) -> AsyncGenerator[dict[str, Any]]:
        """The documents of a stream, which ends without a mark.

        Raises:
            ApiError: an error, with a status of its own or after the first event under HTTP 200.
        """
        limit = self._args.max_answer_bytes
        if reply.status != 200:
            body = await reply.read(limit)
            raise triton_dialects.error(reply.status, triton_dialects.message_of(body))
        lines = Lines(limit)
        async with aclosing(reply.chunks()) as chunks:
            async for chunk in chunks:
                for data in data_of(lines.feed(chunk)):
                    document = document_of(data)
                    if "error" in document:
                        raise triton_dialects.error(500, str(document["error"]))
                    yield document

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
        await self._cancels.wait()
        await super().stop()
