"""What the simulated engine answers, with which probabilities, and which prompts its faults fall on: pure functions
of the request, so that a run can be repeated."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from math import log
from random import Random

from deployments.openai_layer.tokens import Sampling, Token
from deployments.simulated_tokenizer import SimulatedTokenizer


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer before any of it is sent."""

    ids: tuple[int, ...]
    key: int  # what its probabilities are made from
    others: Sequence[int]  # tokens that are given as alternatives

    def token(self, index: int, logprobs: int | None) -> Token:
        """Its token at `index`: the likeliest by far, as the answer is the one that was chosen."""
        chosen = self.ids[index]
        if logprobs is None:
            return Token(chosen)
        random = Random(f"{self.key} {index}")
        probability = random.uniform(0.5, 0.95)
        alternatives = (other for other in random.sample(self.others, logprobs) if other != chosen)
        top = [(chosen, log(probability))]
        for share, other in zip(range(1, logprobs), alternatives, strict=False):
            top.append((other, log((1 - probability) / 2**share)))
        return Token(chosen, top[0][1], tuple(top[:logprobs]))


class Author:
    """Writes answers: always the same text, or words that a hash of the request chooses."""

    def __init__(self, tokenizer: SimulatedTokenizer, text: str | None, tokens: int) -> None:
        """`tokens` are an answer's of words, the one that ends it included."""
        self._end = tokenizer.end_id
        self._fixed = None if text is None else (*tokenizer.encode(text), self._end)
        self._words, self._capitals = tokenizer.words(), tokenizer.capitals()
        self._tokens = tokens
        self._unseeded = 0

    def answer(self, prompt: Sequence[int], sampling: Sampling) -> Answer:
        """At most `sampling.max_tokens` tokens. At temperature 0 the prompt alone decides, else the seed as well;
        without a seed no two answers are the same, though a restarted engine gives the same ones in the same order."""
        key = _hash(f"answer {self._variant(sampling)}", prompt)
        ids = self._of_words(Random(key), sampling.max_tokens) if self._fixed is None else self._fixed
        return Answer(ids[: sampling.max_tokens], key, self._words)

    def _variant(self, sampling: Sampling) -> str:
        if sampling.temperature == 0:
            return "greedy"
        if sampling.seed is not None:
            return f"seed {sampling.seed}"
        self._unseeded += 1
        return f"number {self._unseeded}"

    def _of_words(self, random: Random, most: int) -> tuple[int, ...]:
        count = min(most, self._tokens - 1)
        return (*[random.choice(self._capitals), *random.choices(self._words, k=count)][:count], self._end)


def falls_on(prompt: Sequence[int], fault: str, rate: float, seed: int) -> bool:
    """Whether a fault that befalls this share of all prompts befalls this one. Each fault and seed has its own."""
    return _hash(f"{fault} {seed}", prompt) < rate * 2**64


def _hash(kind: str, tokens: Sequence[int]) -> int:
    """64 bits. The same in every process."""
    digest = blake2b(kind.encode(), digest_size=8)
    digest.update(array("Q", tokens).tobytes())
    return int.from_bytes(digest.digest())
