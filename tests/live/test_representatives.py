"""Each behaviour of the conformance suite once, on the engines of the run's server. `make test-engines` has all."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.conformance.checks import CHECKS
from tests.conformance.judging import judge
from tests.conformance.running import client_of, subject_of
from tests.conformance.server_config import model_of
from tests.conformance.subject import Subject
from tests.conformance.suite import carry_out
from tests.live.fixtures import BEHIND
from tests.live.server import Server

NAMES = (
    "answer repeats at temperature 0",
    "chat stream equals whole, token for token",
    "completion stream equals whole",
    "tokens come as they are made",
    "an answer says who gave it",
    "two streams at once keep apart",
    "prompt tokens are the engine's own count",
    "usage chunk when asked for",
    "usage of several choices",
    "natural end is stop",
    "max_tokens is length",
    "stop string across chunks",
    "emoji arrive whole",
    "tokenize and detokenize are inverse",
    "n choices in a stream",
    "seed repeats",
    "logprobs in a stream",
    "completion logprobs: 2",
    "several turns",
    "prompt that doesn't fit",
    "echo",
    "json_schema is enforced",
    "a required tool call in a stream",
    "leaving in mid-stream",
    "leaving before the first token",
    "leaving a request that isn't streamed",
    "others go on when one leaves",
    "bad requests harm no good ones",
    *(name for name, check in CHECKS.items() if check.theme == "errors"),
    "models list",
    "OpenAI's client",
    "Messages API in a stream",
)


@pytest.fixture
async def subject(server: Server, cluster: Any, engine: str) -> AsyncIterator[Subject]:
    async with client_of(server.url) as client:
        yield await subject_of(client, model_of(engine), server, BEHIND)


@pytest.mark.parametrize("name", NAMES)
async def test_check(subject: Subject, name: str) -> None:
    judge(await carry_out(CHECKS[name], subject))
