"""What operators fear, done to a real server under load: a tenth of what `make faults` does."""

import asyncio
from collections.abc import Iterator

import pytest

from tests.faults import rows, soak  # noqa: F401 (they register what they do)
from tests.faults.rig import Rig, rigged
from tests.faults.suite import ROWS, SHORT, carry_out


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with rigged(tmp_path_factory.mktemp("faults")) as rig:
        yield rig


@pytest.mark.parametrize("name", [each.name for each in ROWS.values() if each.run is not None])
def test_fault(rig: Rig, name: str) -> None:
    seen = asyncio.run(carry_out(ROWS[name], rig, SHORT))
    assert not seen.misses, seen
