"""The work that every contestant gets."""

from dataclasses import dataclass, replace

from benchmarks.gateway.answers import Ask
from benchmarks.gateway.engine import Pace

PROMPT_CHARS = 400
LONG_PROMPT_CHARS = 8192
LIMIT_S = 4.0  # from when on a case asks nothing new; what is under way then takes about as long at most

# The cases that the headline figures are taken from.
WHOLE_HEADLINE = "whole-c64"
PACED_HEADLINE = "stream-10ms-c64"


@dataclass(frozen=True, slots=True)
class Case:
    """One load: the same request over and over, by so many clients at once."""

    name: str
    ask: Ask
    concurrency: int
    requests: int
    limit_s: float = LIMIT_S

    def scaled(self, scale: float) -> "Case":
        """A shorter one, in which each client still asks once."""
        requests = max(self.concurrency, round(self.requests * scale))
        return replace(self, requests=requests, limit_s=max(1.0, self.limit_s * scale))

    @property
    def paced(self) -> bool:
        return self.ask.pace.interval_ms > 0


def streamed(name: str, interval_ms: float, concurrency: int, requests: int, prompt_chars: int = PROMPT_CHARS) -> Case:
    return Case(name, Ask(Pace(64, interval_ms), prompt_chars, stream=True), concurrency, requests)


def whole(name: str, concurrency: int, requests: int, prompt_chars: int = PROMPT_CHARS) -> Case:
    return Case(name, Ask(Pace(64), prompt_chars, stream=False), concurrency, requests)


CASES = (
    *(streamed(f"stream-0ms-c{clients}", 0, clients, 100 if clients == 1 else 600) for clients in (1, 16, 64, 128)),
    *(streamed(f"stream-10ms-c{clients}", 10, clients, clients * 5) for clients in (1, 16, 64, 128)),
    *(whole(f"whole-c{clients}", clients, 1500) for clients in (16, 64)),
    streamed("long-stream-c16", 0, 16, 300, LONG_PROMPT_CHARS),
    whole("long-whole-c16", 16, 1000, LONG_PROMPT_CHARS),
)
WARM_UP = (streamed("warm-up-stream", 0, 8, 60), whole("warm-up-whole", 8, 100))

# Short, so that it is the way there and back that counts.
PAIRED = Ask(Pace(2), PROMPT_CHARS, stream=True)
PAIRS = 150
PAIRED_LIMIT_S = 8.0
