"""The two ways in which a Triton server's TensorRT-LLM models are asked, and answer. Pure functions.

Sources, in TensorRT-LLM's triton_backend: names and types of inputs and outputs, `config.pbtxt` of
`inflight_batcher_llm/ensemble`, `tensorrt_llm_bls` and `tensorrt_llm`, and of `llmapi/tensorrt_llm`; what they do with
them, the `model.py` beside these, and `inflight_batcher_llm/src`. In Triton: `http_server.cc`, `ensemble_scheduler.cc`.

Not confirmed on a server: that a stream of the ensemble has a piece an event, unless `tensorrt_llm_bls` accumulates;
whether `num_output_tokens` has the end of sequence; that the PyTorch backend honours a seed and penalties, for which
its model has inputs; and the header `triton-request-id`, which no source reads: the id is in the body, too.
"""

import json
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from deployments.errors import ApiError
from deployments.event_stream import data_of
from deployments.openai_layer.tokens import FinishReason, Guide, Sampling
from deployments.upstream_errors import excerpt

Dialect = Literal["ensemble", "llmapi"]
Document = dict[str, Any]

PENALTIES = ("frequency_penalty", "presence_penalty")
GREEDY_BELOW = 1e-5  # temperatures below are as good as 0
BROKEN = "\ufffd"  # in the place of a character of which only some bytes are there
ID_HEADER = "triton-request-id"
# Of the words that refuse a prompt because of its length; Triton's status of it is 500, as of most that models raise.
_TOO_LONG = ("exceeds maximum input length", "max_seq_len", "max_num_tokens", "maximum sequence length")
_STATUS = {404: 502, 501: 400}  # a model that isn't there is this pool's fault; what isn't supported the request's


class TritonError(ApiError):
    """A server's own word that a request has failed, and so has ended there."""


def ensemble(prompt: str, sampling: Sampling) -> Document:
    """A request to a compiled engine's `ensemble` or `tensorrt_llm_bls`."""
    body = {
        "text_input": prompt,
        "max_tokens": sampling.max_tokens,
        "stream": True,
        "exclude_input_in_output": True,
        "return_num_output_tokens": True,
        **_choosing(sampling),
    }
    if sampling.guide is not None:
        schema = sampling.guide.kind == "json_schema"
        body["guided_decoding_guide_type"] = sampling.guide.kind if schema else "json"
        if schema:
            body["guided_decoding_guide"] = sampling.guide.schema
    return body


def llmapi(prompt: str, sampling: Sampling) -> Document:
    """A request to the PyTorch backend's `tensorrt_llm`."""
    given = {"max_tokens": sampling.max_tokens, "exclude_input_from_output": True, **_choosing(sampling)}
    params = {f"sampling_param_{name}": value for name, value in given.items()}
    return {"text_input": prompt, "streaming": True, "return_finish_reason": True, **params}


def _choosing(sampling: Sampling) -> Document:
    """Greedy is the default, whatever the temperature, where neither `top_k` nor `top_p` is said; and seed 0."""
    greedy = sampling.temperature < GREEDY_BELOW
    chosen: Document = {"top_k": 1} if greedy else {"temperature": sampling.temperature, "top_p": sampling.top_p}
    chosen["seed"] = secrets.randbits(63) if sampling.seed is None else sampling.seed % 2**64
    penalties = {"frequency_penalty": sampling.frequency_penalty, "presence_penalty": sampling.presence_penalty}
    return chosen | {name: value for name, value in penalties.items() if value}


REQUESTS: Mapping[Dialect, Callable[[str, Sampling], Document]] = {"ensemble": ensemble, "llmapi": llmapi}


def stop(dialect: Dialect) -> Document:
    """What stops the request whose id it is sent under. What else is in it is needed and not looked at."""
    if dialect == "llmapi":
        return {"text_input": "", "stop": True}
    return {"input_ids": [0], "input_lengths": 1, "request_output_len": 1, "stop": True}


def missing_inputs(dialect: Dialect, inputs: frozenset[str], guided: bool) -> list[str]:
    """Inputs that requests need and a model hasn't: Triton takes them for parameters, which no model looks at."""
    guide = Guide("json_schema", "{}") if guided else None
    needed = [REQUESTS[dialect]("", Sampling(1, temperature, guide=guide)) for temperature in (0.0, 1.0)]
    return sorted({name for body in needed for name in body} - inputs - {"return_num_output_tokens"})


def penalties_of(dialect: Dialect, inputs: frozenset[str]) -> tuple[str, ...]:
    """The penalties for which a model has inputs."""
    prefix = "sampling_param_" if dialect == "llmapi" else ""
    return tuple(name for name in PENALTIES if prefix + name in inputs)


def finish_of(event: Document) -> FinishReason | None:
    """Why an answer ended, where the event tells: the ensemble never does, and the other says "None" until then.

    Raises:
        RuntimeError: for a reason that nobody asked for.
    """
    match event.get("finish_reason"):
        case None | "None" | "":
            return None
        case "stop":
            return "stop"
        case "length":
            return "length"
        case other:
            raise RuntimeError(f"Triton ended a request by itself: {other}")


def tokens_of(event: Document) -> int | None:
    """How many tokens the event is, where it tells; older models of the ensemble don't, and `llmapi` never does."""
    match event.get("num_output_tokens"):
        case int(tokens):
            return tokens
        case _:
            return None


@dataclass(slots=True)
class Text:
    """The text of an answer from its events, in whole characters."""

    accumulates: bool  # each event has all of it so far
    whole: str = ""  # what was given out
    _held: str = ""

    def feed(self, event: Document) -> str:
        """What is new and can be shown."""
        told = str(event.get("text_output", ""))
        text = told[len(self.whole) :] if self.accumulates else self._held + told
        kept = text.rstrip(BROKEN)
        self._held = text[len(kept) :]
        self.whole += kept
        return kept

    def flush(self) -> str:
        """What was held back, once nothing more can make it whole."""
        rest, self._held = self._held, ""
        self.whole += rest
        return rest


def message_of(body: bytes) -> str:
    """What an error says: `{"error": "..."}`, in an event's frame where a stream's first answer is one."""
    try:
        return str(json.loads(next(data_of(body), body))["error"])
    except (ValueError, KeyError, TypeError):
        return excerpt(body) or "it didn't say why"


def error(status: int, message: str) -> TritonError:
    """An error of Triton's in OpenAI's envelope."""
    told = excerpt(_last_line(message).encode())
    if any(words in message for words in _TOO_LONG):
        return TritonError(400, told, code="context_length_exceeded")
    status = _STATUS.get(status, status)
    if status >= 500:
        return TritonError(status, f"The Triton server failed: {told}", type="server_error", code="upstream_error")
    return TritonError(status, told, code="invalid_value")


def _last_line(message: str) -> str:
    """Of a traceback, which `tensorrt_llm_bls` sends as its message, what was raised."""
    lines = message.strip().splitlines()
    return lines[-1] if lines and "Traceback (most recent call last)" in message else message
