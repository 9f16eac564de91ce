"""What of the vLLM adapter runs without vLLM; the rest is tested on a real one."""

import pytest
from pydantic import ValidationError

from deployments.engine import PoolModel
from deployments.vllm import VllmArgs, VllmEngine


def test_args_pass_through_as_they_are() -> None:
    args = VllmArgs.model_validate({"max_model_len": 1024, "enforce_eager": True, "hf_overrides": {"a": [1]}})
    assert args.model_extra == {"max_model_len": 1024, "enforce_eager": True, "hf_overrides": {"a": [1]}}
    engine = VllmEngine(PoolModel("m", "m"), args)
    assert engine._args == args.model_extra
    assert VllmEngine(PoolModel("m", "m"), VllmArgs())._args == {}


@pytest.mark.parametrize("name", ["model", "served_model_name", "revision"])
def test_engine_args_leave_the_model_to_the_pool(name: str) -> None:
    with pytest.raises(ValidationError, match=f"'{name}' is set by the pool's own keys"):
        VllmArgs.model_validate({name: "x", "max_model_len": 128})
