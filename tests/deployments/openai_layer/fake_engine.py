"""A token engine that says what a test scripted, for the layer above it. Runs no model."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field

from deployments.openai_layer.text import Tokenizer
from deployments.openai_layer.tokens import Sampling, Token


@dataclass
class FakeEngine:
    """Answers its n-th generation with the n-th of `answers`, over and over, and then with an end of sequence."""

    tokenizer: Tokenizer
    answers: Sequence[Sequence[int]] = ((),)
    context_length: int = 256
    name: str = "scripted"
    eos_token_ids: frozenset[int] = frozenset({0})
    failure: Exception | None = None
    fails_after: int = 0  # tokens
    failing_call: int | None = None  # the only generation that fails; None: all do
    hangs_after: int | None = None  # tokens
    top: Callable[[int], tuple[tuple[int, float], ...]] = lambda token_id: ()
    calls: list[tuple[list[int], Sampling]] = field(default_factory=list)
    generated: int = 0  # tokens, over all generations
    running: int = 0  # generations begun and not yet closed
    hanging: asyncio.Event = field(default_factory=asyncio.Event)

    async def generate(self, prompt: list[int], sampling: Sampling) -> AsyncGenerator[Token]:
        answer = self.answers[len(self.calls) % len(self.answers)]
        call = len(self.calls)
        self.calls.append((prompt, sampling))
        self.running += 1
        try:
            for position, token_id in enumerate([*answer, *self.eos_token_ids][: sampling.max_tokens]):
                await self._obstacle(call, position)
                self.generated += 1
                yield Token(token_id, -0.5 * (position + 1), self.top(token_id))
        finally:
            self.running -= 1

    async def _obstacle(self, call: int, position: int) -> None:
        await asyncio.sleep(0)  # as a real engine does, so that choices take turns
        fails = self.failing_call in (None, call) and position == self.fails_after
        if self.failure is not None and fails:
            raise self.failure
        if position == self.hangs_after:
            self.hanging.set()
            await asyncio.Event().wait()
