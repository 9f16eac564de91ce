"""A tenth of the run that `make fuzz` does, always with the same inputs."""

from collections.abc import Iterator

import pytest

from tests.fuzz import campaign
from tests.fuzz.trial import Trial, trial

INPUTS = 10_000
SEED = 1


@pytest.fixture(scope="module")
def asked() -> Iterator[Trial]:
    """One house for all inputs, as a server goes on."""
    with campaign.elsewhere(), trial() as opened:
        yield opened


@pytest.mark.parametrize(("target", "inputs"), campaign.shares(INPUTS).items())
def test_whatever_is_asked_is_answered_and_so_is_the_next(asked: Trial, target: str, inputs: int) -> None:
    row = campaign.run(asked, target, inputs, SEED)
    assert row.inputs == inputs
    assert not row.faulty, "\n\n".join(row.faults)
    assert row.statuses["4xx"] > inputs / 5 and row.statuses["2xx"], "inputs are to go wrong, but not all of them"
