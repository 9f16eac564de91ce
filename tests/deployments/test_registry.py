"""Engines that are registered from outside: what a pool asks of their arguments has a default."""

from collections.abc import Iterator

import pytest
from pydantic import BaseModel, ValidationError

from deployments import registry
from deployments.config import PoolConfig
from deployments.engine_args import EngineArgs
from deployments.placement import Need
from deployments.registry import EngineSpec


class PlainArgs(BaseModel):
    """Written by somebody who knows nothing of `EngineArgs`."""

    size: int = 1


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(registry, "ENGINES", registry.ENGINES)  # so that it is what it was afterwards
    registry.register("outside", EngineSpec("nowhere:Engine", f"{__name__}:PlainArgs", has_files=False))
    yield


@pytest.fixture(autouse=True)
def found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_load", lambda reference: PlainArgs)


def pool(**fields: object) -> PoolConfig:
    return PoolConfig.model_validate({"engine": "outside", "model": "m", **fields})


def test_it_needs_no_gpu_unless_its_pool_says_so() -> None:
    assert pool().need == Need(1.0, 0, None, {})
    assert pool(gpus=2, gpu_type="A100").need == Need(1.0, 2, "A100", {})


def test_its_arguments_are_of_its_own_type_too() -> None:
    args = pool(engine_args={"size": 3}, gpus=0.5).typed_engine_args()
    assert {PlainArgs, EngineArgs} <= set(type(args).__mro__)
    assert args.model_dump() == {"size": 3}


def test_an_argument_that_it_has_not_is_refused() -> None:
    with pytest.raises(ValidationError, match="sise"):
        pool(engine_args={"sise": 3}).typed_engine_args()


def test_what_is_an_engine_args_is_left_alone() -> None:
    assert registry._with_defaults(EngineArgs) is EngineArgs
