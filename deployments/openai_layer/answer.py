"""An answer of one or more choices, whole or as a stream of events."""

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from deployments.engine import EngineDeadError, EngineResponse
from deployments.errors import error_event
from deployments.openai_layer.choice import Delta, Usage, gather
from deployments.openai_layer.documents import DONE, Documents, event
from deployments.openai_layer.merge import merge
from deployments.openai_layer.schema import ChatRequest, CompletionRequest

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Plan:
    """A request, ready to run."""

    choices: Sequence[AsyncGenerator[Delta]]  # not begun
    usage: Usage
    documents: Documents


async def respond(plan: Plan, request: ChatRequest | CompletionRequest) -> EngineResponse:
    """The answer in the form that the request asks for.

    Raises:
        ApiError: the engine refuses it, or EngineDeadError: it died, before the whole of a non-streamed answer.
    """
    if request.stream:
        return EngineResponse(_stream(plan, request.include_usage), media_type="text/event-stream")
    return EngineResponse(await _whole(plan))


async def _whole(plan: Plan) -> bytes:
    tasks = [asyncio.ensure_future(gather(choice)) for choice in plan.choices]
    try:
        choices = await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
    return json.dumps(plan.documents.whole(choices, plan.usage), ensure_ascii=False).encode()


async def _stream(plan: Plan, include_usage: bool) -> AsyncGenerator[bytes]:
    """The answer's events. Nothing is sent before there is a token, so that an engine that fails before it can
    still be answered by an error's status; a failure after it is an event."""
    opened = False
    try:
        async with aclosing(merge(plan.choices)) as merged:
            async for index, delta in merged:
                if not opened:
                    opened = True
                    if opening := b"".join(map(event, plan.documents.opening(len(plan.choices)))):
                        yield opening
                yield event(plan.documents.chunk(index, delta))
    except EngineDeadError:
        raise  # the replica ends with its engine, and the ingress tells the clients of its streams
    except Exception:
        if not opened:
            raise
        logger.exception("generation failed in mid-stream")
        # No [DONE] after this: a client must not take a broken answer for a whole one.
        yield error_event("The engine failed while it answered.", "engine_error")
        return
    if include_usage:
        yield event(plan.documents.usage_chunk(plan.usage))
    yield DONE
