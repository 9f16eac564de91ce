"""A check's result as pytest's."""

import pytest

from tests.conformance.suite import Result


def judge(result: Result) -> None:
    if result.outcome == "n/a":
        pytest.skip(result.reason)
    assert result.outcome in ("pass", "refused"), result.reason
