"""As test_faults, what takes a server of its own."""

import asyncio

import pytest

from tests.faults import alone  # noqa: F401 (it registers what it does)
from tests.faults.suite import ROWS, SHORT, NotHereError, carry_out


@pytest.mark.parametrize("name", [each.name for each in ROWS.values() if each.alone is not None])
def test_fault(name: str) -> None:
    try:
        seen = asyncio.run(carry_out(ROWS[name], None, SHORT))
    except NotHereError as lack:
        pytest.skip(str(lack))
    assert not seen.misses, seen
