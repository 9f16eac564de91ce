"""A stand-in for a Text Generation Inference server, without a model: `python -m tests.fakes.tgi --port N`.

It keeps TGI 3.3's published API (requests are held to its schemas) and what its servers were seen to do: an empty `id`,
finish reasons of its own, errors of a stream under HTTP 200, `top_p: 1` refused, a queue that refuses when it is full
and turns the health red. What it writes are words that a hash of the request chooses.
"""

import asyncio
import itertools
import json
import re
import time
from collections.abc import AsyncGenerator, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import click
import uvicorn
from jsonschema import Draft202012Validator
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from tests.fakes.writing import json_of, words

OPENAPI: dict[str, Any] = json.loads(
    (Path(__file__).parents[1] / "data" / "tgi" / "openapi.json").read_text(encoding="utf-8")
)
MODEL = "org/model"
PIECE = re.compile(r"\s*\S+")  # a token
Document = dict[str, Any]


def nullable(schema: Any) -> Any:
    """OpenAPI 3.0's `nullable` as JSON Schema has it."""
    if isinstance(schema, list):
        return list(map(nullable, schema))
    if not isinstance(schema, dict):
        return schema
    plain = {key: nullable(value) for key, value in schema.items() if key not in ("nullable", "example", "default")}
    return {"anyOf": [plain, {"type": "null"}]} if schema.get("nullable") else plain


def validator(name: str) -> Draft202012Validator:
    """Of one of the published schemas."""
    return Draft202012Validator({"$ref": f"#/components/schemas/{name}", "components": nullable(OPENAPI["components"])})


class RefusedError(Exception):
    def __init__(self, status: int, message: str, kind: str) -> None:
        super().__init__(message)
        self.status, self.kind = status, kind

    def document(self) -> Document:
        return {"error": str(self), "error_type": self.kind}


@dataclass
class Server:
    """What one server is, and what it has seen."""

    interval_s: float = 0.01  # a token
    max_total_tokens: int = 8192
    max_concurrent_requests: int = 128
    batch: int = 32  # requests that run together
    answer_tokens: int = 640
    api_key: str | None = None
    replayed: list[Any] = field(default_factory=list)  # recorded answers, to be given next
    fails_after: int | None = None  # tokens of a stream
    running: int = 0
    waiting: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0
    adapters: frozenset[str] = frozenset()
    received: list[Document] = field(default_factory=list)
    authorizations: list[str | None] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._seeds = itertools.count()
        self._places = asyncio.Semaphore(self.batch)

    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/health", self.health),
                Route("/info", self.info),
                Route("/metrics", self.metrics),
                Route("/v1/chat/completions", self.chat, methods=["POST"]),
                Route("/v1/completions", self.completions, methods=["POST"]),
                Route("/generate", self.generate, methods=["POST"]),
                Route("/generate_stream", self.generate_stream, methods=["POST"]),
                Route("/tokenize", self.tokenize, methods=["POST"]),
            ]
        )

    async def health(self, _: Request) -> Response:
        busy = self.running + self.waiting >= self.max_concurrent_requests
        unhealthy = {"error": "unhealthy", "error_type": "healthcheck"}
        return JSONResponse(unhealthy, 503) if busy else Response()

    async def info(self, _: Request) -> Response:
        return JSONResponse(
            {
                "model_id": MODEL,
                "model_sha": None,
                "model_pipeline_tag": "text-generation",
                "max_concurrent_requests": self.max_concurrent_requests,
                "max_best_of": 2,
                "max_stop_sequences": 4,
                "max_input_tokens": self.max_total_tokens - 1,
                "max_total_tokens": self.max_total_tokens,
                "validation_workers": 2,
                "max_client_batch_size": 4,
                "router": "text-generation-router",
                "version": "3.3.5",
                "sha": None,
                "docker_label": None,
            }
        )

    async def metrics(self, _: Request) -> Response:
        values = {
            "tgi_batch_current_size": self.running,
            "tgi_queue_size": self.waiting,
            "tgi_request_input_length_sum": self.prompt_tokens,
            "tgi_request_generated_tokens_sum": self.generated_tokens,
        }
        return PlainTextResponse("".join(f"{name} {value}\n" for name, value in values.items()))

    async def chat(self, request: Request) -> Response:
        return await self._serve(request, "ChatRequest")

    async def completions(self, request: Request) -> Response:
        return await self._serve(request, "CompletionRequest")

    async def generate(self, request: Request) -> Response:
        """The native route; a stream's errors are always under HTTP 200."""
        return await self._native(request, stream=False)

    async def generate_stream(self, request: Request) -> Response:
        return await self._native(request, stream=True)

    async def tokenize(self, request: Request) -> Response:
        body = await self._read(request, "GenerateRequest")
        if isinstance(body, Response):
            return body
        found = [
            {"id": hash_of(match[0]), "text": match[0], "start": match.start(), "stop": match.end()}
            for match in PIECE.finditer(body["inputs"])
        ]
        return JSONResponse(found)

    async def _native(self, request: Request, *, stream: bool) -> Response:
        body = await self._read(request, "GenerateRequest")
        if isinstance(body, Response):
            return body
        self.received.append(body)
        if self.replayed:
            return JSONResponse(self.replayed.pop(0))
        asked: Document = body.get("parameters") or {}
        try:
            answer = self._native_answer(body["inputs"], asked)
        except RefusedError as error:
            if stream:
                return StreamingResponse(_events([error.document()], done=False), media_type="text/event-stream")
            return JSONResponse(error.document(), error.status)
        if stream:
            return StreamingResponse(self._native_events(answer), media_type="text/event-stream")
        return await _unless_left(request, self._native_whole(answer))

    def _native_answer(self, inputs: str, asked: Document) -> "Answer":
        """
        Raises:
            RefusedError: a limit is passed.
        """
        if not inputs:
            raise RefusedError(422, "Input validation error: `inputs` cannot be empty", "validation")
        if asked.get("temperature") == 0:
            raise RefusedError(422, "Input validation error: `temperature` must be strictly positive", "validation")
        if (asked.get("top_n_tokens") or 0) > 5:
            raise RefusedError(422, "Input validation error: `top_n_tokens` must be >= 0 and <= 5", "validation")
        greedy = not asked.get("do_sample") and asked.get("temperature") is None
        as_openai = {
            "max_tokens": asked.get("max_new_tokens"),
            "temperature": 0 if greedy else 1,
            "stop": asked.get("stop"),
            "logprobs": True,
            "top_logprobs": asked.get("top_n_tokens"),
            **{name: asked.get(name) for name in ("top_p", "seed", "frequency_penalty")},
        }
        [answer] = self._answers({**as_openai, "model": asked.get("adapter_id") or "tgi", "prompt": inputs}, False)
        return answer

    async def _native_whole(self, answer: "Answer") -> Document:
        async for _ in self._paced(answer):
            pass
        tokens = [answer.token(at) for at in range(len(answer.tokens))]
        return {
            "generated_text": "".join(answer.shown),
            "details": {
                "finish_reason": answer.reason,
                "generated_tokens": len(answer.tokens),
                "seed": None,
                "prefill": [],
                "tokens": [token for token, _ in tokens],
                **({"top_tokens": [top for _, top in tokens]} if answer.tops else {}),
            },
        }

    async def _native_events(self, answer: "Answer") -> AsyncGenerator[bytes]:
        async for at in self._paced(answer, len(answer.tokens)):
            if at == self.fails_after:
                yield _event({"error": "Request failed during generation: out of memory", "error_type": "generation"})
                return
            token, top = answer.token(at)
            last = at == len(answer.tokens) - 1
            details = {
                "finish_reason": answer.reason,
                "generated_tokens": len(answer.tokens),
                "input_length": answer.prompt_tokens,
                "seed": None,
            }
            yield _event(
                {
                    "index": at + 1,
                    "token": token,
                    **({"top_tokens": top} if answer.tops else {}),
                    "generated_text": "".join(answer.shown) if last else None,
                    "details": details if last else None,
                }
            )
            yield b": keep-alive\n\n"

    async def _read(self, request: Request, schema: str) -> Any:
        """The body, held to what is published; or the answer to one that isn't so."""
        self.authorizations.append(request.headers.get("authorization"))
        if self.api_key is not None and request.headers.get("authorization") != f"Bearer {self.api_key}":
            return Response(status_code=401)
        try:
            body = json.loads(await request.body())
        except ValueError as error:
            return PlainTextResponse(f"Failed to parse the request body as JSON: {error}", 400)
        if problem := next(validator(schema).iter_errors(body), None):
            return PlainTextResponse(f"Failed to deserialize the JSON body: {problem.message}", 422)
        return body

    async def _serve(self, request: Request, schema: str) -> Response:
        body = await self._read(request, schema)
        if isinstance(body, Response):
            return body
        self.received.append(body)
        if self.replayed:
            return self._replay(self.replayed.pop(0))
        chat = schema == "ChatRequest"
        try:
            answers = self._answers(body, chat)
        except RefusedError as error:
            if body.get("stream"):  # always 200
                return StreamingResponse(_events([error.document()]), media_type="text/event-stream")
            return JSONResponse(error.document(), error.status)
        if body.get("stream"):
            return StreamingResponse(self._stream(body, answers, chat), media_type="text/event-stream")
        return await _unless_left(request, self._whole(body, answers, chat))

    def _replay(self, recorded: Any) -> Response:
        if isinstance(recorded, list):
            return StreamingResponse(_events(recorded), media_type="text/event-stream")
        return JSONResponse(recorded)

    def _answers(self, body: Document, chat: bool) -> list["Answer"]:
        """
        Raises:
            RefusedError: a limit is passed.
        """
        top_p, stops = body.get("top_p"), body.get("stop") or []
        if top_p is not None and not 0 < top_p < 1:
            raise RefusedError(422, "Input validation error: `top_p` must be > 0.0 and < 1.0", "validation")
        if len(stops) > 4:
            raise RefusedError(
                422,
                f"Input validation error: `stop` supports up to 4 stop sequences. Given: {len(stops)}",
                "validation",
            )
        if (body.get("top_logprobs") or 0) > 5:
            raise RefusedError(422, "Input validation error: `top_n_tokens` must be >= 0 and <= 5", "validation")
        if (adapter := body.get("model")) not in ("tgi", None, *self.adapters):
            raise RefusedError(422, f"Input validation error: adapter_id `{adapter}` not found", "validation")
        if chat and body.get("tools") and body.get("response_format"):
            raise RefusedError(422, "Input validation error: Grammar and tools are mutually exclusive", "tool_error")
        if self.running + self.waiting >= self.max_concurrent_requests:
            raise RefusedError(429, "Model is overloaded", "overloaded")
        prompts = [json.dumps(body["messages"])] if chat else body["prompt"]
        return [self._answer(body, prompt, chat) for prompt in ([prompts] if isinstance(prompts, str) else prompts)]

    def _answer(self, body: Document, prompt: str, chat: bool) -> "Answer":
        prompt_tokens = len(PIECE.findall(prompt))
        room = self.max_total_tokens - prompt_tokens
        most = body.get("max_tokens") or max(room, 1)
        if prompt_tokens + most > self.max_total_tokens or room < 1:
            raise RefusedError(
                422,
                f"Input validation error: `inputs` tokens + `max_new_tokens` must be <= {self.max_total_tokens}. "
                f"Given: {prompt_tokens} `inputs` tokens and {most} `max_new_tokens`",
                "validation",
            )
        temperature = body.get("temperature")
        seed = body.get("seed")
        chosen = "greedy" if temperature == 0 else f"seed {next(self._seeds) if seed is None else seed}"
        key = f"{chosen} {body.get('frequency_penalty')} {body.get('presence_penalty')}"
        text = words(key, [hash_of(prompt)], self.answer_tokens)
        calls = _called(body, key) if chat else None
        if grammar := body.get("response_format"):
            text = json_of(grammar["value"], Random(f"{key} {prompt}"))
        pieces = re.findall(r".{1,4}", calls[1], re.DOTALL) if calls else PIECE.findall(text)
        return Answer(prompt_tokens, pieces, most, body.get("stop") or [], calls[0] if calls else None, body, key)

    async def _whole(self, body: Document, answers: list["Answer"], chat: bool) -> Document:
        for answer in answers:
            async for _ in self._paced(answer):
                pass
        choices = [answer.choice(index, chat) for index, answer in enumerate(answers)]
        usage = total([answer.usage() for answer in answers])
        return {**_head("chat.completion" if chat else "text_completion"), "choices": choices[::-1], "usage": usage}

    async def _stream(self, body: Document, answers: list["Answer"], chat: bool) -> AsyncGenerator[bytes]:
        head = _head("chat.completion.chunk" if chat else "text_completion")
        for index, answer in enumerate(answers):
            async for at in self._paced(answer):
                if self.fails_after is not None and at >= self.fails_after:
                    failure = {"message": "Request failed during generation", "http_status_code": 422}
                    yield _event({"error": failure})
                    yield b"data: [DONE]\n\n"
                    return
                last = at == len(answer.shown) - 1
                usage = None if chat or not last else answer.usage()
                yield _event({**head, "choices": [answer.chunk(index, at, chat)], "usage": usage})
                yield b": keep-alive\n\n"
            if not answer.shown:
                yield _event({**head, "choices": [answer.chunk(index, 0, chat)], "usage": None})
        if (body.get("stream_options") or {}).get("include_usage") and chat:
            yield _event({**head, "choices": [], "usage": total([answer.usage() for answer in answers])})
        yield b"data: [DONE]\n\n"

    async def _paced(self, answer: "Answer", tokens: int | None = None) -> AsyncGenerator[int]:
        """The index of each token when it is there; a client that leaves ends it."""
        self.waiting += 1
        try:
            await self._places.acquire()
        finally:
            self.waiting -= 1
        self.running += 1
        self.prompt_tokens += answer.prompt_tokens
        try:
            for at in range(len(answer.shown) if tokens is None else tokens):
                await asyncio.sleep(self.interval_s)  # the pace of a model
                self.generated_tokens += 1
                yield at
        finally:
            self.running -= 1
            self._places.release()


class Answer:
    """One choice, all of it known at the start."""

    def __init__(
        self,
        prompt_tokens: int,
        pieces: list[str],
        most: int,
        stops: list[str],
        tool: str | None,
        body: Document,
        key: str,
    ) -> None:
        self.prompt_tokens = prompt_tokens
        self.tool = tool
        self._body, self._key = body, key
        self.shown, self.reason = pieces[:most], "length" if len(pieces) > most else "eos_token"
        text = "".join(self.shown)
        if found := min((at for stop in stops if (at := text.find(stop)) >= 0), default=None):
            self._cut(text[:found])
        elif found == 0:
            self.shown, self.reason = [], "stop_sequence"
        self.shown[:1] = [piece.lstrip() for piece in self.shown[:1]]

    def _cut(self, text: str) -> None:
        self.shown, self.reason = re.findall(r"\s*\S+|\s+$", text), "stop_sequence"

    def usage(self) -> Document:
        generated = len(self.shown) + (self.reason == "eos_token")
        total = self.prompt_tokens + generated
        return {"prompt_tokens": self.prompt_tokens, "completion_tokens": generated, "total_tokens": total}

    @property
    def stated(self) -> str:
        """TGI's chats say `stop` for an end of its own, but not for a stop sequence."""
        return "stop" if self.reason == "eos_token" else self.reason

    def choice(self, index: int, chat: bool) -> Document:
        text = "".join(self.shown)
        if not chat:
            return {"index": index, "text": text, "logprobs": None, "finish_reason": self.reason}
        message: Document = {"role": "assistant", "content": text, "tool_calls": None}
        if self.tool:
            function = {"name": self.tool, "arguments": text, "description": None}
            message |= {"content": None, "tool_calls": [{"id": "0", "type": "function", "function": function}]}
        logprobs = {"content": [self._logprob(at) for at in range(len(self.shown))]} if self._asked else None
        return {"index": index, "message": message, "logprobs": logprobs, "finish_reason": self.stated, "usage": None}

    @property
    def _asked(self) -> bool:
        return bool(self._body.get("logprobs"))

    def chunk(self, index: int, at: int, chat: bool) -> Document:
        piece = self.shown[at] if self.shown else ""
        last = at >= len(self.shown) - 1
        if not chat:
            return {"index": index, "text": piece, "logprobs": None, "finish_reason": self.reason if last else ""}
        delta: Document = {"role": "assistant", "content": piece, "tool_calls": None}
        if self.tool:
            function = {"name": self.tool if at == 0 else None, "arguments": piece}
            call = {"index": 0, "id": "0", "type": "function", "function": function}
            delta |= {"content": None, "tool_calls": [call]}
        logprobs = {"content": [self._logprob(at)]} if self._asked else None
        reason = self.stated if last and not self.tool else None
        return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": reason}

    @property
    def tops(self) -> int:
        """Alternatives to tell of each token."""
        return self._body.get("top_logprobs") or 0

    def _alternatives(self, at: int) -> list[tuple[str, float]]:
        """Texts with their log probabilities, the token's own first."""
        text = self.tokens[at]
        random = Random(f"{self._key} {at} {text}")
        first = -random.uniform(0.1, 0.6)
        return [(text, first), *((f" other{rank}", first - 1.5 * rank) for rank in range(1, 6))]

    def _logprob(self, at: int) -> Document:
        (text, first), *_ = told = self._alternatives(at)
        top = [{"token": token, "logprob": value} for token, value in told[: self.tops]]
        return {"token": text, "logprob": first, "top_logprobs": top}

    @property
    def tokens(self) -> list[str]:
        """On the native routes the end of a sequence is a token, too."""
        return [*self.shown, "</s>"] if self.reason == "eos_token" else self.shown

    def token(self, at: int) -> tuple[Document, list[Document]]:
        """Of the native routes: a token, and its alternatives."""
        told = [
            {"id": hash_of(text), "text": text, "logprob": logprob, "special": text == "</s>"}
            for text, logprob in self._alternatives(at)
        ]
        return told[0], told[: self.tops]


async def _unless_left(request: Request, work: Coroutine[Any, Any, Document]) -> Response:
    """A client that leaves ends the work on its answer."""
    answer = asyncio.create_task(work)
    left = asyncio.ensure_future(request.receive())  # nothing else comes: the body was read
    await asyncio.wait([answer, left], return_when=asyncio.FIRST_COMPLETED)
    (left if answer.done() else answer).cancel()
    await asyncio.gather(answer, left, return_exceptions=True)
    return Response(status_code=499) if answer.cancelled() else JSONResponse(answer.result())


def _called(body: Document, key: str) -> tuple[str, str] | None:
    """The tool that an answer calls, and with what; None: it is text. Without being made to, nothing is called."""
    tools, choice = body.get("tools") or [], body.get("tool_choice")
    if not tools or choice in (None, "auto", "none"):
        return None
    names = [tool["function"]["name"] for tool in tools]
    name = choice["function"]["name"] if isinstance(choice, dict) else names[0]
    function = tools[names.index(name)]["function"]
    said = [message["content"] for message in body["messages"] if message["role"] == "user"]
    named = re.findall(r" ([A-Z][a-z]+)", str(said[-1:]))  # as a model would take it from the question
    schema = function.get("arguments") or function.get("parameters") or {"type": "object"}
    return name, json_of(schema, Random(key), *named[:1])


def hash_of(text: str) -> int:
    return sum(ord(character) * (at + 1) for at, character in enumerate(text))


def total(usages: list[Document]) -> Document:
    return {name: sum(usage[name] for usage in usages) for name in usages[0]}


def _head(kind: str) -> Document:
    return {"object": kind, "id": "", "created": int(time.time()), "model": MODEL, "system_fingerprint": "3.3.5-native"}


def _event(document: Any) -> bytes:
    return f"data:{json.dumps(document)}\n\n".encode()


async def _events(documents: list[Any], *, done: bool = True) -> AsyncGenerator[bytes]:
    for document in documents:
        yield _event(document)
    if done:
        yield b"data: [DONE]\n\n"


@click.command()
@click.option("--port", type=int, required=True)
def main(port: int) -> None:
    """Serve on loopback until it is stopped."""
    uvicorn.run(Server().app(), host="127.0.0.1", port=port, log_level="warning")


if __name__ == "__main__":
    main()
