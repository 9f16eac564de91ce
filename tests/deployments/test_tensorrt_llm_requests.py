"""What is asked of TensorRT-LLM, and what its answers become."""

from types import SimpleNamespace
from typing import Any

import pytest

from deployments.engine import EngineStats
from deployments.openai_layer.tokens import Guide, Sampling, Token
from deployments.tensorrt_llm_requests import (
    NOT_REPORTED,
    Ends,
    finish,
    guided_decoding,
    new_tokens,
    refused,
    sampling_params,
    stats,
)

ENDS = Ends(2, 0, (7,))


def asked(**fields: Any) -> dict[str, Any]:
    return sampling_params(Sampling(**{"max_tokens": 5} | fields), ENDS)


def test_no_default_of_theirs_is_left() -> None:
    """32 tokens, seed 0, and greedy decoding where neither top_k nor top_p is said."""
    found = asked()
    assert (found["max_tokens"], found["temperature"], found["top_p"]) == (5, 1.0, 1.0)
    assert (found["end_id"], found["pad_id"], found["stop_token_ids"]) == (2, 0, [7])
    assert not found["detokenize"] and not found["add_special_tokens"]
    assert asked()["seed"] != asked()["seed"]


@pytest.mark.parametrize(("seed", "sent"), [(0, 0), (7, 7), (-1, 2**64 - 1)])
def test_a_seed(seed: int, sent: int) -> None:
    assert asked(seed=seed)["seed"] == sent


@pytest.mark.parametrize("temperature", [0, 1e-6])
def test_greedy(temperature: float) -> None:
    found = asked(temperature=temperature, top_p=0.3)
    assert found["top_k"] == 1
    assert not {"temperature", "top_p"} & found.keys()


@pytest.mark.parametrize(("logprobs", "sent"), [(None, None), (0, 1), (1, 1), (5, 5)])
def test_log_probabilities_are_asked_for(logprobs: int | None, sent: int | None) -> None:
    assert asked(logprobs=logprobs)["logprobs"] == sent


def test_penalties() -> None:
    assert (asked()["frequency_penalty"], asked()["presence_penalty"]) == (None, None)
    found = asked(frequency_penalty=0.5, presence_penalty=-1.0)
    assert (found["frequency_penalty"], found["presence_penalty"]) == (0.5, -1.0)


@pytest.mark.parametrize(
    ("eos", "pad", "ends"),
    [
        ({5}, 1, Ends(5, 1)),
        ({9, 5}, None, Ends(5, 5, (9,))),
        (set(), None, Ends(-1, -1)),
        (set(), 3, Ends(-1, 3)),
    ],
)
def test_ends(eos: set[int], pad: int | None, ends: Ends) -> None:
    assert Ends.of(frozenset(eos), pad) == ends


def test_guides() -> None:
    assert guided_decoding(Guide("json_object")) == {"json_object": True}
    assert guided_decoding(Guide("json_schema", '{"type": "object"}')) == {"json": '{"type": "object"}'}


def reported(**values: float) -> dict[int, Any]:
    return {int(key[1:]): SimpleNamespace(logprob=value, rank=1) for key, value in values.items()}


def output(ids: list[int], logprobs: list[dict[int, Any]] | None = None) -> SimpleNamespace:
    return SimpleNamespace(token_ids=ids, logprobs=logprobs or [])


def test_new_tokens_of_a_cumulative_output() -> None:
    assert new_tokens(output([1, 2, 3]), 1, None) == [Token(2), Token(3)]
    assert new_tokens(output([1]), 2, None) == []  # a stop word was taken away


def test_log_probabilities_of_new_tokens() -> None:
    found = output([4, 5, 6], [reported(_4=-0.1), reported(_9=-0.2, _5=-1.5), {}])
    assert new_tokens(found, 0, 2) == [
        Token(4, -0.1, ((4, -0.1),)),
        Token(5, -1.5, ((9, -0.2), (5, -1.5))),
        Token(6, NOT_REPORTED),
    ]
    assert new_tokens(found, 1, 0)[0] == Token(5, -1.5)
    assert new_tokens(output([4]), 0, 1) == [Token(4, NOT_REPORTED)]


def test_finish() -> None:
    assert (finish("stop"), finish("length")) == ("stop", "length")
    for reason in ("timeout", "cancelled", "else"):
        with pytest.raises(RuntimeError, match=reason):
            finish(reason)


def test_refusals() -> None:
    assert refused("Prompt length (9) exceeds maximum input length (8)").code == "context_length_exceeded"
    assert (refused("no").status, refused("no").code) == (400, "invalid_value")


def test_stats() -> None:
    iteration = {
        "numActiveRequests": 5,
        "numQueuedRequests": 2,
        "inflightBatchingStats": {"numPausedRequests": 1},
        "kvCacheStats": {"usedNumBlocks": 25, "maxNumBlocks": 100, "cacheHitRate": 0.5},
    }
    assert stats(iteration, 10, 20) == EngineStats(4, 3, 0.25, 0.5, 10, 20)
    assert stats({}, 0, 0) == EngineStats(0, 0)
    assert stats({"kvCacheStats": {"maxNumBlocks": 0}}, 0, 0).kv_cache_usage is None
