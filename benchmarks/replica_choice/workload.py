"""The traffic of the simulation: requests as clients send them, and the tokens that an engine makes of them. Pure."""

import random
import string
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from deployments.replica_choice.prefix import prompt_blocks

TOKEN_CHARS = 4  # a token stands for so many characters, about as in English
MODEL = "simulated"

Message = dict[str, str]


@dataclass(frozen=True, slots=True)
class Ask:
    """A request: what the router sees of it, and what an engine does."""

    blocks: Sequence[int]
    prompt: Sequence[int]  # tokens
    answer: Sequence[int]


@dataclass(frozen=True, slots=True)
class Shape:
    """What conversations look like. Sizes are in tokens, of which each is drawn between two bounds."""

    system_prompts: int  # as many kinds of conversations; 0: none has a system prompt
    system_tokens: int
    turns: tuple[int, int]
    question_tokens: tuple[int, int]
    answer_tokens: tuple[int, int]
    pause_s: float  # between an answer and the next question, on average


# Assistants with long instructions, talked to in turns: 64 kinds of them, more than a replica's cache of 65,536 tokens
# has room for; and 16, which every replica can keep.
MANY = Shape(64, 1024, (2, 6), (64, 320), (64, 192), 8.0)
FEW = Shape(16, 1024, (2, 6), (64, 320), (64, 192), 8.0)
PLAIN = Shape(0, 0, (1, 1), (256, 1536), (64, 192), 0.0)  # each prompt is new
SHAPES = {"many_prefixes": MANY, "few_prefixes": FEW, "plain": PLAIN}


class Conversation:
    """One client's turns."""

    def __init__(self, shape: Shape, kinds: Sequence[str], chance: random.Random) -> None:
        self._shape, self._chance = shape, chance
        self._messages: list[Message] = []
        if kinds:
            self._messages.append({"role": "system", "content": chance.choice(kinds)})
        self._turns = chance.randint(*shape.turns)

    def turns(self) -> Iterator[tuple[Ask, float]]:
        """Each request, with the seconds from the answer before it."""
        for turn in range(self._turns):
            pause_s = self._chance.expovariate(1 / self._shape.pause_s) if turn else 0.0
            question = text(self._chance, self._chance.randint(*self._shape.question_tokens))
            answer = text(self._chance, self._chance.randint(*self._shape.answer_tokens))
            self._messages.append({"role": "user", "content": question})
            yield self._ask(answer), pause_s
            self._messages.append({"role": "assistant", "content": answer})

    def _ask(self, answer: str) -> Ask:
        rendered = "".join(message["role"][:TOKEN_CHARS].upper() + message["content"] for message in self._messages)
        blocks = prompt_blocks("chat/completions", {"messages": self._messages}, MODEL)
        return Ask(blocks, tokens(rendered + "ASSI"), tokens(answer))


def conversations(shape: Shape, seed: int) -> Iterator[Conversation]:
    """As many as are wanted, the same for each seed."""
    chance = random.Random(seed)
    kinds = [text(chance, shape.system_tokens) for _ in range(shape.system_prompts)]
    while True:
        yield Conversation(shape, kinds, random.Random(chance.getrandbits(64)))


def text(chance: random.Random, count: int) -> str:
    """So many tokens that nobody else has."""
    return "".join(chance.choices(string.ascii_lowercase, k=count * TOKEN_CHARS))


def tokens(text: str) -> Sequence[int]:
    """One for each `TOKEN_CHARS` characters."""
    return memoryview(text.encode("ascii")).cast("I").tolist()
