"""Continuous batching without an engine: what runs in each step, by the timing model.

Pure and discrete. It knows no clock and no text: who drives it adds requests when they arrive and lets
`Step.duration_s` pass, on the wall or on a virtual clock. It schedules as vLLM's V1 scheduler does: what runs comes
first, then waiting requests in the order of their arrival; prompts are cut to the step's budget of tokens.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from deployments.kv_blocks import BlockPool, block_hashes
from deployments.timing import TimingModel


@dataclass(frozen=True, slots=True)
class Request:
    """A request as the scheduler sees it."""

    id: str  # unique while the request lives
    prompt: Sequence[int]  # token ids
    max_tokens: int  # it ends after so many
    answer: Sequence[int] = ()  # token ids it will generate, where known: later prompts can hit their blocks
    stalls_after: int | None = None  # tokens; then it gets no more, and keeps what it holds until it is cancelled


@dataclass(frozen=True, slots=True)
class Generated:
    """A token of a request's answer."""

    request_id: str
    index: int  # in the answer, from 0
    last: bool


@dataclass(frozen=True, slots=True)
class Step:
    """One forward pass. Its tokens are there `duration_s` after it began."""

    duration_s: float = 0.0
    scheduled_tokens: int = 0  # 0: nothing can go on before a request is added or cancelled
    tokens: tuple[Generated, ...] = ()
    admitted: tuple[str, ...] = ()  # ids of requests that wait no more
    preempted: tuple[str, ...] = ()  # ids of requests that wait again, and lost what was computed


@dataclass(slots=True)
class _Sequence:
    """A request that waits or runs."""

    request: Request
    hashes: tuple[int, ...]  # of the full blocks whose tokens are known
    blocks: list[int] = field(default_factory=list)
    computed: int = 0  # tokens whose KV is in the blocks
    generated: int = 0
    counted: bool = False  # its prompt, in the statistics

    @property
    def length(self) -> int:
        return len(self.request.prompt) + self.generated

    @property
    def pending(self) -> int:
        """Tokens to compute before the next one is generated."""
        return self.length - self.computed

    @property
    def decodes(self) -> bool:
        return self.generated > 0 and self.pending == 1

    @property
    def stalled(self) -> bool:
        return self.generated == self.request.stalls_after


@dataclass(slots=True)
class _Batch:
    """A step while it is put together."""

    budget: int  # tokens left
    work: list[tuple[_Sequence, int]] = field(default_factory=list)  # with tokens to compute
    admitted: list[str] = field(default_factory=list)
    preempted: list[str] = field(default_factory=list)

    def add(self, sequence: _Sequence) -> None:
        count = min(sequence.pending, self.budget)
        if count:
            self.work.append((sequence, count))
            self.budget -= count


class Scheduler:
    """The state of such an engine between two steps."""

    def __init__(self, model: TimingModel) -> None:
        self._model = model
        self._blocks = BlockPool(model.kv_blocks)
        self._running: dict[str, _Sequence] = {}  # in the order of admission
        self._waiting: OrderedDict[str, _Sequence] = OrderedDict()
        self.prompt_tokens = 0  # of requests that were admitted
        self.hit_tokens = 0  # those of them that the prefix cache had
        self.generated_tokens = 0

    @property
    def running(self) -> int:
        """Requests that hold KV blocks."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def kv_usage(self) -> float:
        """Share of the KV blocks that requests hold, 0 to 1."""
        return self._blocks.used / self._blocks.total

    @property
    def hit_rate(self) -> float:
        """Share of all prompt tokens that the prefix cache had, 0 to 1."""
        return self.hit_tokens / self.prompt_tokens if self.prompt_tokens else 0.0

    def add(self, request: Request) -> None:
        """Have a request wait for its turn.

        Raises:
            ValueError: it is empty, its id is taken, or it would never fit in the KV cache.
        """
        if request.id in self._running or request.id in self._waiting:
            raise ValueError(f"a request with the id '{request.id}' is there already")
        if not request.prompt or request.max_tokens < 1:
            raise ValueError("a request needs a token in its prompt and one to generate")
        most = len(request.prompt) + request.max_tokens - 1  # nothing reads the last token
        if most > self._model.kv_tokens:
            raise ValueError(f"{most} tokens never fit in a KV cache of {self._model.kv_tokens}")
        tokens = (*request.prompt, *request.answer)
        self._waiting[request.id] = _Sequence(request, tuple(block_hashes(tokens, self._model.block_size)))

    def cancel(self, request_id: str) -> None:
        """Forget a request and free what it holds. One that has ended or was never there is no error."""
        self._waiting.pop(request_id, None)
        if sequence := self._running.pop(request_id, None):
            self._release(sequence)

    def step(self) -> Step:
        """What the next forward pass does. The state is at once the one after it."""
        batch = _Batch(self._model.max_num_batched_tokens)
        for sequence in list(self._running.values()):
            if batch.budget and sequence.request.id in self._running and self._grow(sequence, batch):
                batch.add(sequence)
        while batch.budget and not batch.preempted and self._admit_next(batch):
            pass
        duration_s = self._duration_s(batch.work) if batch.work else 0.0
        return Step(
            duration_s=duration_s,
            scheduled_tokens=sum(count for _, count in batch.work),
            tokens=tuple(token for sequence, count in batch.work if (token := self._compute(sequence, count))),
            admitted=tuple(batch.admitted),
            preempted=tuple(batch.preempted),
        )

    def _grow(self, sequence: _Sequence, batch: _Batch) -> bool:
        """Give a running sequence the blocks for its newest token; whether it still runs then. The one that was
        admitted last gives way."""
        while (missing := self._model.blocks(sequence.length) - len(sequence.blocks)) > 0:
            if blocks := self._blocks.take(missing):
                sequence.blocks += blocks
                continue
            request_id, last = self._running.popitem()
            self._release(last)
            self._waiting[request_id] = last
            self._waiting.move_to_end(request_id, last=False)
            batch.preempted.append(request_id)
            if last is sequence:
                return False
        return True

    def _admit_next(self, batch: _Batch) -> bool:
        """Start the request that has waited longest, if there is a place and room for the whole of its prompt."""
        if not self._waiting or len(self._running) == self._model.max_num_seqs:
            return False
        request_id, sequence = next(iter(self._waiting.items()))
        size = self._model.block_size
        # At least one token is computed: the first to generate comes from it.
        hits = self._blocks.cached(sequence.hashes[: (sequence.length - 1) // size])
        blocks = self._blocks.take(self._model.blocks(sequence.length) - len(hits), hits)
        if blocks is None:
            return False
        sequence.blocks, sequence.computed = blocks, len(hits) * size
        if not sequence.counted:
            sequence.counted = True
            self.prompt_tokens += sequence.length
            self.hit_tokens += sequence.computed
        self._running[request_id] = self._waiting.pop(request_id)
        batch.admitted.append(request_id)
        batch.add(sequence)
        return True

    def _duration_s(self, work: Sequence[tuple[_Sequence, int]]) -> float:
        decoding = [sequence.length for sequence, _ in work if sequence.decodes]
        prefill_tokens = sum(count for sequence, count in work if not sequence.decodes)
        return self._model.duration_s(prefill_tokens, len(decoding), sum(decoding))

    def _compute(self, sequence: _Sequence, count: int) -> Generated | None:
        """Take so many tokens into the cache; the token that this generates, once none is pending."""
        size, before = self._model.block_size, sequence.computed
        sequence.computed += count
        for index in range(before // size, min(sequence.computed // size, len(sequence.hashes))):
            self._blocks.store(sequence.blocks[index], sequence.hashes[index])
        if sequence.pending or sequence.stalled:
            return None
        sequence.generated += 1
        self.generated_tokens += 1
        request = sequence.request
        if last := sequence.generated == request.max_tokens:
            self.cancel(request.id)
        return Generated(request.id, sequence.generated - 1, last)

    def _release(self, sequence: _Sequence) -> None:
        self._blocks.release(sequence.blocks)
        sequence.blocks, sequence.computed = [], 0
