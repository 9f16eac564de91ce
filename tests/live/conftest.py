"""What tests of running servers share; the server itself is in `fixtures`."""

import pytest

from tests.live.fixtures import engine_params

ENGINES = ("simulated", "transformers", "vllm", "sglang")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Tests of an `engine` are run on each."""
    if "engine" in metafunc.fixturenames:
        metafunc.parametrize("engine", engine_params(metafunc.config, ENGINES))
