"""Drives the scheduler of the timing model by the event loop's clock, and hands each token to who waits for it."""

import asyncio
from collections.abc import AsyncGenerator, Sequence

from deployments.batching import Generated, Request, Scheduler
from deployments.engine import EngineDeadError

CATCH_UP_S = 0.02  # how late a step may begin, on a busy machine, and still end on time


class BatchLoop:
    """One task that runs the scheduler's steps while there is work, until it dies."""

    def __init__(self, scheduler: Scheduler, *, time_factor: float = 1, die_after_tokens: int | None = None) -> None:
        self._scheduler = scheduler
        self._time_factor = time_factor
        self._tokens_left = die_after_tokens
        self._outputs: dict[str, asyncio.Queue[int | None]] = {}  # None: it died
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._death: str | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())
        self._task.add_done_callback(self._ended)

    def die(self, reason: str) -> None:
        """End all that runs, and whatever is asked from now on, with an EngineDeadError. The first reason stays."""
        self._death = self._death or reason
        for outputs in self._outputs.values():
            outputs.put_nowait(None)
        if self._task is not None:
            self._task.cancel()

    def raise_if_dead(self) -> None:
        if self._death is not None:
            raise EngineDeadError(self._death)

    async def tokens(self, request: Request) -> AsyncGenerator[int]:
        """The index of each token when it is there. Closing it frees what the request holds, at once.

        Raises:
            EngineDeadError: the loop died before the last token.
        """
        self.raise_if_dead()
        self._scheduler.add(request)
        outputs = self._outputs[request.id] = asyncio.Queue[int | None]()
        self._wake.set()
        try:
            for _ in range(request.max_tokens):
                index = await outputs.get()
                if index is None:
                    self.raise_if_dead()
                else:
                    yield index
        finally:
            del self._outputs[request.id]
            self._scheduler.cancel(request.id)
            self._wake.set()  # what it held may be what another waits for

    async def _run(self) -> None:
        clock = asyncio.get_running_loop().time
        while True:
            await self._wake.wait()
            self._wake.clear()
            ends = clock()
            while (step := self._scheduler.step()).scheduled_tokens:
                # From the last step's end, so that late wake-ups don't add up.
                ends = max(ends, clock() - CATCH_UP_S) + step.duration_s * self._time_factor
                await asyncio.sleep(max(0.0, ends - clock()))
                self._deliver(step.tokens)

    def _deliver(self, tokens: Sequence[Generated]) -> None:
        for token in tokens:
            if self._tokens_left == 0:
                break
            if self._tokens_left is not None:
                self._tokens_left -= 1
            if outputs := self._outputs.get(token.request_id):
                outputs.put_nowait(token.index)
        if self._tokens_left == 0:
            self.die("the simulated engine died, as faults.die_after_tokens asks")

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()):
            self.die(f"the simulated engine's loop failed: {error!r}")
