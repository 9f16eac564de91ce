"""What crosses between our OpenAI layer and TensorRT-LLM's `LLM`. Pure functions; TensorRT-LLM isn't imported.

Source: TensorRT-LLM 1.2, `sampling_params.py`, `executor/result.py` and its iteration statistics.
"""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from deployments.engine import EngineStats
from deployments.errors import ApiError
from deployments.openai_layer.tokens import FinishReason, Guide, Sampling, Token

GREEDY_BELOW = 1e-5  # temperatures below are as good as 0
NOT_REPORTED = -9999.0  # what OpenAI's API reports where it has no log probability of a token
# Of the words with which the C++ executor refuses one request because of its length.
_TOO_LONG = ("exceeds maximum input length", "max_seq_len", "max_num_tokens", "maximum sequence length")


@dataclass(frozen=True, slots=True)
class Ends:
    """The tokens that end an answer, as TensorRT-LLM wants them: one, and others as stop words."""

    end_id: int
    pad_id: int
    stop_token_ids: tuple[int, ...] = ()

    @classmethod
    def of(cls, eos_token_ids: frozenset[int], pad_token_id: int | None) -> "Ends":
        """Without any end of sequence: -1, which no token is."""
        first, *others = sorted(eos_token_ids) or [-1]
        return cls(first, first if pad_token_id is None else pad_token_id, tuple(others))


def sampling_params(sampling: Sampling, ends: Ends) -> dict[str, Any]:
    """The arguments of `SamplingParams`, but for guided decoding, which has a class of its own.

    What isn't said there has a default that isn't OpenAI's: 32 tokens; seed 0, so that every answer would be the
    same; and greedy decoding where neither `top_k` nor `top_p` is given, whatever the temperature.
    """
    greedy = sampling.temperature < GREEDY_BELOW
    choosing = {"top_k": 1} if greedy else {"temperature": sampling.temperature, "top_p": sampling.top_p}
    return {
        "max_tokens": sampling.max_tokens,
        "end_id": ends.end_id,
        "pad_id": ends.pad_id,
        "stop_token_ids": list(ends.stop_token_ids) or None,
        **choosing,
        "seed": secrets.randbits(63) if sampling.seed is None else sampling.seed % 2**64,
        "frequency_penalty": sampling.frequency_penalty or None,
        "presence_penalty": sampling.presence_penalty or None,
        # 0 would mean none: one alternative more than was asked for, which isn't passed on.
        "logprobs": None if sampling.logprobs is None else max(1, sampling.logprobs),
        "detokenize": False,  # our layer does
        "add_special_tokens": False,
    }


def guided_decoding(guide: Guide) -> dict[str, Any]:
    """The arguments of `GuidedDecodingParams`, of which exactly one may be given."""
    return {"json_object": True} if guide.kind == "json_object" else {"json": guide.schema}


def new_tokens(output: Any, sent: int, logprobs: int | None) -> list[Token]:
    """The tokens of a `CompletionOutput`, which holds all since the start, that come after `sent` of them."""
    ids: Sequence[int] = output.token_ids
    if logprobs is None:
        return [Token(token_id) for token_id in ids[sent:]]
    reported: Sequence[Mapping[int, Any]] = output.logprobs or ()
    return [_token(ids[at], reported[at] if at < len(reported) else {}, logprobs) for at in range(sent, len(ids))]


def _token(token_id: int, reported: Mapping[int, Any], alternatives: int) -> Token:
    values = {other: entry.logprob for other, entry in reported.items()}
    ranked = sorted(values.items(), key=lambda pair: -pair[1])
    return Token(token_id, values.get(token_id, NOT_REPORTED), tuple(ranked[:alternatives]))


def finish(reason: str) -> FinishReason:
    """The end of an answer in OpenAI's words.

    Raises:
        RuntimeError: nobody asked for an end of that kind.
    """
    match reason:
        case "stop" | "length":
            return reason
        case _:
            raise RuntimeError(f"TensorRT-LLM ended a request by itself: {reason}")


def refused(message: str) -> ApiError:
    """TensorRT-LLM's refusal of one request, before it ran or in its executor."""
    if any(words in message for words in _TOO_LONG):
        return ApiError(400, message, code="context_length_exceeded")
    return ApiError(400, message, code="invalid_value")


def stats(iteration: Mapping[str, Any], prompt_tokens: int, generated_tokens: int) -> EngineStats:
    """Our words for an iteration's statistics; tokens are counted by the adapter, for TensorRT-LLM doesn't."""
    cache = iteration.get("kvCacheStats") or {}
    most = cache.get("maxNumBlocks") or 0
    paused = (iteration.get("inflightBatchingStats") or {}).get("numPausedRequests") or 0
    return EngineStats(
        running=int(iteration.get("numActiveRequests") or 0) - paused,
        waiting=int(iteration.get("numQueuedRequests") or 0) + paused,
        kv_cache_usage=cache.get("usedNumBlocks", 0) / most if most else None,
        prefix_hit_rate=cache.get("cacheHitRate"),
        prompt_tokens=prompt_tokens,
        generated_tokens=generated_tokens,
    )
