"""The two ways in which a Triton server's TensorRT-LLM models are asked, and answer. Pure functions.

Source: the models' `config.pbtxt` and `model.py` in TensorRT-LLM's triton_backend (`inflight_batcher_llm/ensemble` and
`llmapi/tensorrt_llm`), and Triton's generate extension. Not confirmed on a server: that a stream of the ensemble has a
piece an event, and not all since the start, unless `tensorrt_llm_bls` accumulates.
"""

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from deployments.errors import ApiError
from deployments.openai_layer.tokens import FinishReason, Sampling

Dialect = Literal["ensemble", "llmapi"]

GREEDY_BELOW = 1e-5  # temperatures below are as good as 0
BROKEN = "\ufffd"  # in the place of a character of which only some bytes are there
_TOO_LONG = ("exceeds maximum input length", "max_seq_len", "max_num_tokens", "maximum sequence length")
_STATUS = {404: 502, 501: 400}  # a model that isn't there is this pool's fault; what isn't supported the request's
Document = dict[str, Any]


def ensemble(prompt: str, sampling: Sampling) -> Document:
    """A request to a compiled engine's `ensemble` or `tensorrt_llm_bls`."""
    body = {
        "text_input": prompt,
        "max_tokens": sampling.max_tokens,
        "stream": True,
        "exclude_input_in_output": True,
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


def error(status: int, message: str) -> ApiError:
    """An error of Triton's in OpenAI's envelope."""
    status = _STATUS.get(status, status)
    if status >= 500:
        return ApiError(status, f"The Triton server failed: {message}", type="server_error", code="upstream_error")
    code = "context_length_exceeded" if any(words in message for words in _TOO_LONG) else "invalid_value"
    return ApiError(status, message, code=code)
