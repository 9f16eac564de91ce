from dataclasses import replace
from typing import Any

import pytest

from deployments.timing import TimingModel

MODEL = TimingModel(prefill_tokens_per_s=1000, step_s=0.5, sequence_s=0.25, cached_token_s=0.125)


@pytest.mark.parametrize(
    ("prefill_tokens", "sequences", "cached_tokens", "expected_s"),
    [(0, 0, 0, 0.5), (1000, 0, 0, 1.5), (0, 1, 0, 0.75), (0, 4, 0, 1.5), (0, 1, 2, 1.0), (500, 2, 4, 2.0)],
)
def test_a_step_s_time(prefill_tokens: int, sequences: int, cached_tokens: int, expected_s: float) -> None:
    assert MODEL.duration_s(prefill_tokens, sequences, cached_tokens) == expected_s


def test_prefill_may_cost_nothing() -> None:
    assert replace(MODEL, prefill_tokens_per_s=float("inf")).duration_s(10**6, 0, 0) == 0.5


@pytest.mark.parametrize(("tokens", "blocks"), [(0, 0), (1, 1), (16, 1), (17, 2), (32, 2)])
def test_tokens_fill_blocks(tokens: int, blocks: int) -> None:
    assert TimingModel(block_size=16).blocks(tokens) == blocks


def test_the_cache_s_size_in_tokens() -> None:
    assert TimingModel(kv_blocks=3, block_size=8).kv_tokens == 24


@pytest.mark.parametrize(
    "parameters",
    [{"kv_blocks": 0}, {"block_size": 0}, {"max_num_seqs": 0}, {"prefill_tokens_per_s": 0}]
    + [{"step_s": -1}, {"sequence_s": -0.1}, {"cached_token_s": -0.1}]
    + [{"max_num_seqs": 9, "max_num_batched_tokens": 8}],
    ids=str,
)
def test_what_makes_no_sense_is_refused(parameters: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(parameters))):
        TimingModel(**parameters)
