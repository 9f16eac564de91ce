import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import ValidationError

from deployments.engine import PoolModel
from deployments.model_facts import token_ids
from deployments.transformers import TransformersArgs, TransformersEngine


def context_length(trained: int | None, **args: Any) -> int:
    config = SimpleNamespace(max_position_embeddings=trained) if trained is not None else SimpleNamespace()
    engine = TransformersEngine(PoolModel("m", "m"), TransformersArgs(**args))
    return engine._context_length(SimpleNamespace(get_text_config=lambda: config))


@pytest.mark.parametrize(
    ("field", "least", "most"),
    [
        ("max_model_len", 16, None),
        ("kv_cache_tokens", 256, None),
        ("block_size", 1, 256),
        ("max_num_batched_tokens", 16, None),
        ("max_num_seqs", 1, None),
        ("threads", 1, None),
    ],
)
def test_bounds(field: str, least: int, most: int | None) -> None:
    for value in (least, most or 10**6):
        assert getattr(TransformersArgs.model_validate({field: value}), field) == value
    for value in (least - 1, *([most + 1] if most else [])):
        with pytest.raises(ValidationError):
            TransformersArgs.model_validate({field: value})


@pytest.mark.parametrize(
    "args",
    [{"dtype": "int8"}, {"dtype": None}, {"device": "tpu"}, {"max_num_seqs": 1.5}, {"max_num_seqs": None}]
    + [{"blocksize": 16}],
    ids=str,
)
def test_other_values_and_keys_are_refused(args: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        TransformersArgs.model_validate(args)


@pytest.mark.parametrize(
    ("device", "has_cuda", "chosen"),
    [
        ("auto", True, "cuda"),
        ("auto", False, "cpu"),
        ("cpu", True, "cpu"),
        ("cuda", False, "cuda"),
    ],
)
def test_the_device(device: str, has_cuda: bool, chosen: str) -> None:
    engine = TransformersEngine(PoolModel("m", "m"), TransformersArgs.model_validate({"device": device}))
    assert engine._device(has_cuda) == chosen


@pytest.mark.parametrize(
    ("trained", "args", "expected"),
    [
        (2048, {}, 2048),
        (100_000, {}, 8192),
        (None, {}, 8192),
        (0, {}, 8192),
        (2048, {"max_model_len": 512}, 512),
        (2048, {"max_model_len": 4096}, 2048),
        (100_000, {"max_model_len": 9000}, 8192),
        (None, {"max_model_len": 512}, 512),
        (2048, {"kv_cache_tokens": 1000, "block_size": 32}, 992),
        (2048, {"kv_cache_tokens": 1000, "block_size": 1}, 1000),
        (None, {"kv_cache_tokens": 1000, "block_size": 32}, 992),
        (2048, {"kv_cache_tokens": 256, "block_size": 256}, 256),
    ],
)
def test_the_context_is_the_least_of_model_cache_and_setting(
    trained: int | None, args: dict[str, int], expected: int
) -> None:
    assert context_length(trained, **args) == expected


def test_any_cache_holds_a_block() -> None:
    for block_size in range(1, 257):
        length = context_length(None, kv_cache_tokens=256, block_size=block_size)
        assert length > 0
        assert length % block_size == 0


@pytest.mark.parametrize(
    ("sources", "ids"),
    [
        ([], set()),
        ([None, None], set()),
        ([2, None], {2}),
        ([[1, 2], 3], {1, 2, 3}),
        ([[1, 2], 2], {1, 2}),
        ([0, [0]], {0}),
        ([[], 0], {0}),
    ],
)
def test_every_source_s_end_of_sequence_counts(sources: list[int | list[int] | None], ids: set[int]) -> None:
    assert token_ids(*sources) == ids


async def test_a_client_that_leaves_as_a_token_comes_stops_its_answer() -> None:
    engine = TransformersEngine(PoolModel("m", "m"), TransformersArgs())
    outputs: asyncio.Queue[str] = asyncio.Queue()
    task = asyncio.create_task(engine._next(outputs))
    await asyncio.sleep(0.01)  # until it waits for a token
    outputs.put_nowait("token")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
