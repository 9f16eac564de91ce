import asyncio
import json

import pytest

from benchmarks.throughput import load
from benchmarks.throughput.load import TOKENS, Done, Round


def stream(tokens: int = TOKENS, end: str = "data: [DONE]\n\n") -> bytes:
    usage = json.dumps({"choices": [], "usage": {"completion_tokens": tokens}})
    return f'data: {{"choices": []}}\n\ndata: {usage}\n\n{end}'.encode()


async def test_a_round_asks_each_number_once_and_never_more_at_once_than_there_are_clients() -> None:
    asked: list[int] = []
    at_once, most = 0, 0

    async def ask(number: int) -> bytes:
        nonlocal at_once, most
        asked.append(number)
        at_once += 1
        most = max(most, at_once)
        await asyncio.sleep(0.001)  # so that requests overlap
        at_once -= 1
        return stream()

    done = await load.run(Round(requests=20, clients=4), ask)
    assert (sorted(asked), most, done.tokens) == (list(range(20)), 4, 20 * TOKENS)
    assert Done(100, 0.5).tokens_per_s == 200


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (stream(TOKENS - 1), f"{TOKENS - 1} tokens were answered, not {TOKENS}"),
        (stream(end=""), r"not with \[DONE\]"),
        (b'{"error": {}}', r"not with \[DONE\]"),
    ],
)
def test_an_answer_that_is_wrong_is_found(answer: bytes, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        load.tokens_of(answer)
