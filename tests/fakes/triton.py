"""A stand-in for a Triton server with TensorRT-LLM's models: `python -m tests.fakes.triton --port N --dialect D`.

It keeps what the models' `config.pbtxt` say (names and types of inputs; which are needed) and what Triton's generate
extension and the models' code do: a request's id is in its body; no `[DONE]`; errors as `{"error"}`, the first answer's
too in a stream's frame, and under HTTP 200 after a first event; the prompt in the answer unless it is excluded; 32
tokens, seed 0 and greedy decoding where nothing else is said; what a closed connection ends, and what it doesn't.

Stricter than Triton in one thing: an input that a model hasn't is refused. Triton makes a parameter of it, which no
model looks at.
"""

import asyncio
import json
import re
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any, Literal

import click
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from tests.fakes.writing import json_of, words

PIECE = re.compile(r"\s*\S+")  # a token
Document = dict[str, Any]

INPUTS: Mapping[str, Mapping[str, type | tuple[type, ...]]] = {
    "ensemble": {
        "text_input": str,
        "max_tokens": int,
        "bad_words": list,
        "stop_words": list,
        "stream": bool,
        "temperature": (int, float),
        "top_p": (int, float),
        "top_k": int,
        "seed": int,
        "min_tokens": int,
        "presence_penalty": (int, float),
        "frequency_penalty": (int, float),
        "repetition_penalty": (int, float),
        "exclude_input_in_output": bool,
        "return_num_input_tokens": bool,
        "return_num_output_tokens": bool,
        "return_log_probs": bool,
        "guided_decoding_guide_type": str,
        "guided_decoding_guide": str,
        "lora_task_id": int,
    },
    "tensorrt_llm": {  # the compiled engine behind the ensemble: what a request to stop another has
        "input_ids": list,
        "input_lengths": int,
        "request_output_len": int,
        "stop": bool,
    },
    "llmapi": {
        "text_input": str,
        "streaming": bool,
        "sampling_param_best_of": int,
        "sampling_param_temperature": (int, float),
        "sampling_param_top_k": int,
        "sampling_param_top_p": (int, float),
        "sampling_param_frequency_penalty": (int, float),
        "sampling_param_presence_penalty": (int, float),
        "sampling_param_max_tokens": int,
        "sampling_param_stop": list,
        "sampling_param_seed": int,
        "sampling_param_exclude_input_from_output": bool,
        "return_finish_reason": bool,
        "return_stop_reason": bool,
        "return_cumulative_logprob": bool,
        "stop": bool,
    },
}
NEEDED: Mapping[str, frozenset[str]] = {
    "ensemble": frozenset({"text_input", "max_tokens"}),
    "tensorrt_llm": frozenset({"input_ids", "input_lengths", "request_output_len"}),
    "llmapi": frozenset({"text_input"}),
}


@dataclass
class Server:
    """What one server is, and what it has seen."""

    dialect: Literal["ensemble", "llmapi"] = "ensemble"
    interval_s: float = 0.01  # a token
    answer_tokens: int = 640
    max_input_len: int = 8192  # tokens
    accumulates: bool = False
    pieces: list[str] | None = None  # what is written, instead of words
    ready: bool = True
    fails_after: int | None = None  # tokens
    ends_as: str | None = None  # a finish reason of its own
    counts: bool = True  # whether the ensemble is new enough to count tokens
    lacks: frozenset[str] = frozenset()  # inputs that this model hasn't
    busy: bool = False  # its queue is full
    per_event: int = 1  # tokens
    batch: int = 32  # requests that run together
    running: int = 0
    waiting: int = 0
    cancelled: list[str] = field(default_factory=list)  # ids of requests that were asked to stop
    received: list[Document] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    headers: list[Mapping[str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._stopped: set[str] = set()
        self._left: set[str] = set()  # ids of requests whose connections were closed
        self._places = asyncio.Semaphore(self.batch)
        self._work: set[asyncio.Task[None]] = set()

    def app(self) -> Starlette:
        model = "/v2/models/ensemble" if self.dialect == "ensemble" else "/v2/models/tensorrt_llm"
        routes = [
            Route("/v2/health/ready", self.health),
            Route("/metrics", self.metrics),
            Route(model, self.metadata),
            Route(f"{model}/generate_stream", self.generate_stream, methods=["POST"]),
        ]
        if self.dialect == "ensemble":
            routes.append(Route("/v2/models/tensorrt_llm/generate_stream", self.stop_step, methods=["POST"]))
        return Starlette(routes=routes, exception_handlers={404: _unknown})

    @property
    def inputs(self) -> Mapping[str, Any]:
        return {name: kind for name, kind in INPUTS[self.dialect].items() if name not in self.lacks}

    async def health(self, _: Request) -> Response:
        return Response(status_code=200 if self.ready else 400)

    async def metadata(self, _: Request) -> Response:
        inputs = [{"name": name, "datatype": "BYTES", "shape": [-1]} for name in self.inputs]
        return JSONResponse({"name": self.dialect, "versions": ["1"], "platform": "python", "inputs": inputs})

    async def metrics(self, _: Request) -> Response:
        """On a port of their own, in the real one."""
        labels = 'nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="%s",version="1"} %d\n'
        return Response(labels % ("scheduled", self.running) + labels % ("waiting", self.waiting))

    async def generate_stream(self, request: Request) -> Response:
        try:
            body = json.loads(await request.body())
            request_id = str(body.pop("id", ""))
            _check(body, self.inputs, NEEDED[self.dialect])
        except ValueError as error:
            return JSONResponse({"error": str(error)}, 400)
        if body.get("stop") is True:
            return self._stop(request_id, {"error": "Request cancelled by client"}, 400)
        self.received.append(body)
        self.ids.append(request_id)
        self.headers.append(request.headers)
        if self.busy:
            return JSONResponse({"error": "Exceeds maximum queue size"}, 503)
        events: asyncio.Queue[Document | None] = asyncio.Queue()
        work = asyncio.create_task(self._generate(body, request_id, events))
        self._work.add(work)
        work.add_done_callback(self._work.discard)
        first = await events.get()
        status = 500 if first is not None and "error" in first else 200
        stream = self._relay(first, events, request_id)
        return StreamingResponse(stream, status, media_type="text/event-stream; charset=utf-8")

    async def stop_step(self, request: Request) -> Response:
        """The compiled engine itself: nothing but requests to stop come here."""
        try:
            body = json.loads(await request.body())
            request_id = str(body.pop("id", ""))
            _check(body, INPUTS["tensorrt_llm"], NEEDED["tensorrt_llm"])
        except ValueError as error:
            return JSONResponse({"error": str(error)}, 400)
        return self._stop(request_id, {"model_name": "tensorrt_llm", "model_version": "1"}, 200)

    def _stop(self, request_id: str, answer: Document, status: int) -> Response:
        """Stop a request, if there is one of that id."""
        if not request_id:
            answer, status = {"error": "A request id must be provided for request cancellation"}, 500
        else:
            self.cancelled.append(request_id)
            self._stopped.add(request_id)
        return Response(_event(answer), status, media_type="text/event-stream; charset=utf-8")

    async def _relay(
        self, first: Document | None, events: "asyncio.Queue[Document | None]", request_id: str
    ) -> AsyncGenerator[bytes]:
        event = first
        try:
            while event is not None:
                yield _event(event)
                event = await events.get()
        finally:
            if event is not None or not events.empty():
                self._left.add(request_id)

    async def _generate(self, body: Document, request_id: str, events: "asyncio.Queue[Document | None]") -> None:
        """The model's work, which goes on until it is stopped, whoever reads."""
        self.waiting += 1
        try:
            await self._places.acquire()
        finally:
            self.waiting -= 1
        self.running += 1
        try:
            async for event in self._events(body):
                # A closed connection ends what the PyTorch backend does for it, and no step of an ensemble.
                if request_id in self._stopped or (self.dialect == "llmapi" and request_id in self._left):
                    events.put_nowait({"error": "Request cancelled by client"})
                    break
                events.put_nowait(event)
        finally:
            events.put_nowait(None)
            self.running -= 1
            self._places.release()

    async def _events(self, body: Document) -> AsyncGenerator[Document]:
        prompt_len = len(PIECE.findall(body["text_input"]))
        if prompt_len > self.max_input_len:
            limit = f"Prompt length ({prompt_len}) exceeds maximum input length ({self.max_input_len})"
            yield {"error": f"Executor failed process requestId 1 due to the following error: {limit}"}
            return
        pieces, reason = self._answer(body)
        prefix = "" if self._asked(body, "exclude_input_in_output", "exclude_input_from_output") else body["text_input"]
        sent, since, tokens = "", "", 0
        for at, piece in enumerate(pieces):
            await asyncio.sleep(self.interval_s)  # the pace of a model
            if at == self.fails_after:
                yield {"error": "Executor failed"}
                return
            last = at == len(pieces) - 1
            sent, since, tokens = sent + piece, since + piece, tokens + 1
            if tokens < self.per_event and not last:
                continue
            # Bytes of a character that isn't whole are shown as what stands for them.
            text = prefix + sent if self.accumulates or self.dialect == "llmapi" else since
            named = {"model_name": self.dialect, "model_version": "1", "text_output": text.replace("|", "\ufffd")}
            if self._asked(body, "return_finish_reason"):
                named["finish_reason"] = (self.ends_as or reason) if last else "None"
            counted = {"num_output_tokens": tokens} if self.counts and body.get("return_num_output_tokens") else {}
            yield named | counted
            since, tokens = "", 0

    def _asked(self, body: Document, *names: str) -> bool:
        return any(body.get(name) or body.get(f"sampling_param_{name}") for name in names)

    def _answer(self, body: Document) -> tuple[list[str], str]:
        def param(name: str, default: Any = None) -> Any:
            return body.get(name if self.dialect == "ensemble" else f"sampling_param_{name}", default)

        most = param("max_tokens", 32)
        greedy = param("top_k") == 1 or param("top_p") in (None, 0)
        chosen = "greedy" if greedy else f"seed {param('seed', 0)} at {param('temperature')}"
        key = f"{chosen} {param('frequency_penalty')} {param('presence_penalty')}"
        if self.pieces is not None:
            return self.pieces[:most], "length" if len(self.pieces) > most else "stop"
        text = words(key, [sum(map(ord, body["text_input"])), len(body["text_input"])], self.answer_tokens)
        if body.get("guided_decoding_guide_type"):
            text = json_of(body.get("guided_decoding_guide"), Random(key + body["text_input"]))
        pieces = PIECE.findall(text)
        return pieces[:most], "length" if len(pieces) > most else "stop"


def _check(body: Document, inputs: Mapping[str, Any], needed: frozenset[str]) -> None:
    """
    Raises:
        ValueError: an input isn't there, isn't known, or is of another type.
    """
    if missing := needed - body.keys():
        raise ValueError(f"expected all required inputs, missing: {', '.join(sorted(missing))}")
    for name, value in body.items():
        if name not in inputs:
            raise ValueError(f"unexpected inference input '{name}'")
        wanted = inputs[name]
        if not isinstance(value, wanted) or (isinstance(value, bool) and wanted is not bool):
            raise ValueError(f"unable to parse '{name}': it isn't of its type")


async def _unknown(request: Request, _: Exception) -> Response:
    return JSONResponse({"error": f"Request for unknown model: '{request.url.path}' is not found"}, 404)


def _event(document: Document) -> bytes:
    return f"data: {json.dumps(document)}\n\n".encode()


@click.command()
@click.option("--port", type=int, required=True)
@click.option("--dialect", type=click.Choice(["ensemble", "llmapi"]), default="ensemble")
def main(port: int, dialect: Literal["ensemble", "llmapi"]) -> None:
    """Serve on loopback until it is stopped."""
    uvicorn.run(Server(dialect).app(), host="127.0.0.1", port=port, log_level="warning")


if __name__ == "__main__":
    main()
