"""Streams: what their chunks look like, and that they say what a whole answer says."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

from tests.conformance.reading import (
    FRANCE,
    STORY,
    choices_of,
    finish_of,
    needs_a_model,
    pieces,
    same,
    streamed_finish,
    streamed_text,
    streamed_tokens,
    text_of,
    tokens_of,
)
from tests.conformance.subject import Subject
from tests.conformance.suite import NotApplicableError, check
from tests.conformance.witness import total

CHAT = "/v1/chat/completions"


@check("answer repeats at temperature 0")
async def repeats(subject: Subject) -> None:
    """The same request, asked twice, has the same answer."""
    first, second = [text_of(await subject.chat(STORY)) for _ in range(2)]
    same("the second answer", second, first)
    assert first, "the answer is empty"


@check("the model's own answer")
async def right(subject: Subject) -> None:
    """SmolLM2-135M-Instruct answers on every engine what it answers by definition, with the same count of tokens."""
    needs_a_model(subject, "its answers are words")
    if not subject.model.startswith("smollm2"):
        raise NotApplicableError("the right answer is known of SmolLM2-135M-Instruct alone")
    document = await subject.chat(FRANCE, max_tokens=32)
    same("the text", text_of(document), "The capital of France is Paris.")
    usage = document["usage"]
    same("the tokens", (usage["prompt_tokens"], usage["completion_tokens"]), (37, 8))


@check("chat stream equals whole")
async def chat_stream(subject: Subject) -> None:
    """At temperature 0 a chat's stream has the text and the finish reason of the whole answer."""
    chunks, whole = await subject.chat_stream(FRANCE, max_tokens=24), await subject.chat(FRANCE, max_tokens=24)
    same("the streamed text", streamed_text(chunks), text_of(whole))
    same("the streamed finish reason", streamed_finish(chunks), finish_of(whole))


@check("chat stream equals whole, token for token", needs=["logprobs"])
async def chat_tokens(subject: Subject) -> None:
    """With logprobs, a chat's stream has the tokens of the whole answer, one by one."""
    chunks = await subject.chat_stream(STORY, logprobs=True)
    whole = await subject.chat(STORY, logprobs=True)
    tokens = [token["token"] for token in tokens_of(whole)]
    same("the streamed tokens", [token["token"] for token in streamed_tokens(chunks)], tokens)
    same("the text of all tokens", "".join(tokens), text_of(whole))


@check("completion stream equals whole", needs=["completions"])
async def completion_stream(subject: Subject) -> None:
    """At temperature 0 a completion's stream has the text and the finish reason of the whole answer."""
    chunks, whole = await subject.complete_stream("Once upon a time"), await subject.complete("Once upon a time")
    same("the streamed text", streamed_text(chunks), text_of(whole))
    same("the streamed finish reason", streamed_finish(chunks), finish_of(whole))
    same("the kinds of chunks", {chunk["object"] for chunk in chunks}, {"text_completion"})


@check("role comes first, and once")
async def role_first(subject: Subject) -> None:
    """The first delta has the role; no later one has a null role, or the content null without anything else."""
    deltas = [choice["delta"] for choice in choices_of(await subject.chat_stream(STORY))]
    same("the first delta's role", deltas[0].get("role"), "assistant")
    for delta in deltas:
        assert "role" not in delta or delta["role"] == "assistant", f"a delta's role is {delta['role']!r}"
    roles = [delta for delta in deltas[1:] if "role" in delta and not delta.get("content")]
    assert not roles, f"later deltas have a role and nothing else: {roles}"


@check("last chunk has the finish reason and an empty delta")
async def last_chunk(subject: Subject) -> None:
    """Exactly one chunk has a finish reason: the last, whose delta has no text; before it, the reason is null."""
    choices = choices_of(await subject.chat_stream(STORY))
    same("the finish reason", streamed_finish([{"choices": choices}]), "length")
    last = choices[-1]
    same("the last chunk's finish reason", last["finish_reason"], "length")
    assert not last["delta"].get("content"), f"the last delta has text: {last['delta']}"
    assert "role" not in last["delta"], f"the last delta has a role: {last['delta']}"


@check("chunks are of one answer")
async def one_answer(subject: Subject) -> None:
    """All chunks have one id, creation time and kind, and the model that was asked for."""
    chunks = await subject.chat_stream(FRANCE)
    for key in ("id", "created"):
        same(f"the number of different values of {key}", len({chunk[key] for chunk in chunks}), 1)
    same("the kinds of chunks", {chunk["object"] for chunk in chunks}, {"chat.completion.chunk"})
    same("the models of chunks", {chunk["model"] for chunk in chunks}, {subject.model})


@check("tokens come as they are made")
async def not_buffered(subject: Subject) -> None:
    """A stream's first tokens come while the engine still makes the rest, each in an event of its own."""
    body = {"messages": [{"role": "user", "content": STORY}], "max_tokens": 600}
    async with subject.lines(CHAT, body) as lines:
        events = [line async for line in _first(lines, 8)]
        if subject.witness:
            assert total(await subject.witness.counts()) > 0, "the first tokens came when the answer was over"
    parts = pieces(json.loads(event.removeprefix("data: ")) for event in events)
    assert len(parts) >= 5, f"8 events hold {len(parts)} pieces of text: {parts}"


async def _first(lines: AsyncIterator[str], count: int) -> AsyncIterator[str]:
    """The first events that hold a document."""
    async for line in lines:
        if line.startswith("data: {"):
            yield line
            count -= 1
        if not count:
            return


@check("an answer says who gave it")
async def who(subject: Subject) -> None:
    """Headers name the pool, the engine and one request id, of whole answers and of streams."""
    body: dict[str, Any] = {"messages": [{"role": "user", "content": FRANCE}], "max_tokens": 2}
    for stream in (False, True):
        response = await subject.post(CHAT, {**body, "stream": stream})
        same("the status", response.status_code, 200)
        same("x-enginehouse-engine", response.headers["x-enginehouse-engine"], subject.engine)
        assert response.headers["x-enginehouse-pool"]
        same("the number of request ids", len(response.headers.get_list("x-request-id")), 1)


@check("a whole answer is a chat.completion")
async def whole_document(subject: Subject) -> None:
    """A whole answer has OpenAI's keys: id, object, created, model, one choice with a message of the assistant."""
    document = await subject.chat(FRANCE)
    same("the object", document["object"], "chat.completion")
    same("the model", document["model"], subject.model)
    assert isinstance(document["id"], str) and document["created"] > 10**9
    [choice] = document["choices"]
    same("the role", choice["message"]["role"], "assistant")
    assert choice["logprobs"] is None, "there are logprobs that nobody asked for"
    assert not choice["message"].get("tool_calls"), "there are tool calls that nobody asked for"


@check("two streams at once keep apart")
async def two_streams(subject: Subject) -> None:
    """Two streams at once have the texts that each has alone."""
    alone = [streamed_text(await subject.chat_stream(prompt)) for prompt in (FRANCE, STORY)]
    together = await asyncio.gather(*(subject.chat_stream(prompt) for prompt in (FRANCE, STORY)))
    same("the texts", [streamed_text(chunks) for chunks in together], alone)
    assert len(pieces(together[1])) > 1
