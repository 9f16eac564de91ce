"""What tests of running servers share; the server itself is in `fixtures`."""

from pathlib import Path

import pytest

from deployments import environments

HAS_VLLM, HAS_SGLANG = (environments.environment(name).installed for name in ("vllm", "sglang"))
NO_VLLM = "vLLM's environment isn't installed; run 'enginehouse engines install vllm'"
NO_SGLANG = "SGLang's environment isn't installed; run 'enginehouse engines install sglang'"

# Each engine, as (model, pool).
TRANSFORMERS = pytest.param(("smollm2-transformers", "transformers"), id="transformers")
VLLM = pytest.param(("smollm2-vllm", "vllm"), id="vllm", marks=pytest.mark.skipif(not HAS_VLLM, reason=NO_VLLM))

SGLANG = pytest.param(
    ("smollm2-sglang", "sglang"), id="sglang", marks=pytest.mark.skipif(not HAS_SGLANG, reason=NO_SGLANG)
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.live)


@pytest.fixture(params=[TRANSFORMERS, VLLM, SGLANG])
def engine(request: pytest.FixtureRequest) -> tuple[str, str]:
    chosen: tuple[str, str] = request.param
    return chosen


@pytest.fixture
def model(engine: tuple[str, str]) -> str:
    return engine[0]


@pytest.fixture
def pool(engine: tuple[str, str]) -> str:
    return engine[1]
