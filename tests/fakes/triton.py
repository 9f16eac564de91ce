"""A stand-in for a Triton server with TensorRT-LLM's models: `python -m tests.fakes.triton --port N --dialect D`.

It keeps what the models' `config.pbtxt` say (names and types of inputs; which are needed) and what Triton's generate
extension and the models' code do: no `[DONE]`; errors as `{"error"}`, under HTTP 200 after a first event; the prompt in
the answer unless it is excluded; 32 tokens, seed 0 and greedy decoding where nothing else is said.
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


@dataclass
class Server:
    """What one server is, and what it has seen."""

    dialect: Literal["ensemble", "llmapi"] = "ensemble"
    interval_s: float = 0.02  # a token
    answer_tokens: int = 640
    max_input_len: int = 8192  # tokens
    accumulates: bool = False
    pieces: list[str] | None = None  # what is written, instead of words
    ready: bool = True
    fails_after: int | None = None  # tokens
    ends_as: str | None = None  # a finish reason of its own
    batch: int = 32  # requests that run together
    running: int = 0
    waiting: int = 0
    cancelled: list[str] = field(default_factory=list)  # ids of requests that were asked to stop
    received: list[Document] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._stopped: set[str] = set()
        self._places = asyncio.Semaphore(self.batch)

    def app(self) -> Starlette:
        model = "ensemble" if self.dialect == "ensemble" else "tensorrt_llm"
        return Starlette(
            routes=[
                Route("/v2/health/ready", self.health),
                Route("/metrics", self.metrics),
                Route(f"/v2/models/{model}/generate_stream", self.generate_stream, methods=["POST"]),
            ]
        )

    async def health(self, _: Request) -> Response:
        return Response(status_code=200 if self.ready else 400)

    async def metrics(self, _: Request) -> Response:
        """On a port of their own, in the real one."""
        labels = 'nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="%s",version="1"} %d\n'
        return Response(labels % ("scheduled", self.running) + labels % ("waiting", self.waiting))

    async def generate_stream(self, request: Request) -> Response:
        try:
            body = json.loads(await request.body())
            self._check(body)
        except ValueError as error:
            return JSONResponse({"error": str(error)}, 400)
        user_id = request.headers.get("triton-request-id", "")
        if body.get("stop") is True:
            if not user_id:
                return JSONResponse({"error": "A request id must be provided for request cancellation"}, 500)
            self.cancelled.append(user_id)
            self._stopped.add(user_id)
            return JSONResponse({"error": "Request cancelled by client"}, 500)
        self.received.append(body)
        self.ids.append(user_id)
        if len(PIECE.findall(body["text_input"])) > self.max_input_len:
            message = f"Prompt length exceeds maximum input length ({self.max_input_len})"
            return JSONResponse({"error": message}, 400)
        if self.fails_after == 0:
            return JSONResponse({"error": "Executor failed"}, 500)
        return StreamingResponse(self._events(body, user_id), media_type="text/event-stream")

    def _check(self, body: Document) -> None:
        """
        Raises:
            ValueError: an input isn't there, isn't known, or is of another type.
        """
        inputs = INPUTS[self.dialect]
        needed = {"text_input", "max_tokens"} if self.dialect == "ensemble" else {"text_input"}
        if missing := needed - body.keys():
            raise ValueError(f"expected all required inputs, missing: {', '.join(sorted(missing))}")
        for name, value in body.items():
            if name not in inputs:
                raise ValueError(f"unexpected inference input '{name}'")
            wanted = inputs[name]
            if not isinstance(value, wanted) or (isinstance(value, bool) and wanted is not bool):
                raise ValueError(f"unable to parse '{name}': it isn't of its type")

    async def _events(self, body: Document, user_id: str) -> AsyncGenerator[bytes]:
        pieces, reason = self._answer(body)
        prefix = "" if self._asked(body, "exclude_input_in_output", "exclude_input_from_output") else body["text_input"]
        sent = ""
        self.waiting += 1
        try:
            await self._places.acquire()
        finally:
            self.waiting -= 1
        self.running += 1
        try:
            for at, piece in enumerate(pieces):
                await asyncio.sleep(self.interval_s)
                if user_id in self._stopped:
                    yield _event({"error": "Request cancelled by client"})
                    return
                if at == self.fails_after:
                    yield _event({"error": "Executor failed"})
                    return
                sent += piece
                # Bytes of a character that isn't whole are shown as what stands for them.
                text = prefix + sent if self.accumulates or self.dialect == "llmapi" else piece
                last = at == len(pieces) - 1
                named = {"model_name": self.dialect, "model_version": "1", "text_output": text.replace("|", "\ufffd")}
                if self._asked(body, "return_finish_reason"):
                    named["finish_reason"] = (self.ends_as or reason) if last else "None"
                yield _event(named)
        finally:
            self.running -= 1
            self._places.release()

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
