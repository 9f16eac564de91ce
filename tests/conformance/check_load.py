"""Many requests at once: each gets its own answer."""

import asyncio

from tests.conformance.reading import FRANCE, STORY, same, streamed_text, text_of
from tests.conformance.subject import Document, Subject
from tests.conformance.suite import check

STREAMS = 200
WORDS = ("seven", "Paris", "ocean", "winter", "bread", "music", "copper", "Monday", "tiger", "glass")


def question(word: str) -> str:
    return f"Write a sentence about {word}."


@check("two hundred streams, none mixed up", timeout_s=600)
async def two_hundred(subject: Subject) -> None:
    """Two hundred streams at once, of ten prompts, each have the text that their prompt has alone, and an id."""
    alone = {word: streamed_text(await subject.chat_stream(question(word), max_tokens=8)) for word in WORDS}
    assert len(set(alone.values())) >= 8, f"the answers don't tell their prompts: {alone}"
    asked = [WORDS[number % len(WORDS)] for number in range(STREAMS)]
    streams = await asyncio.gather(*(subject.chat_stream(question(word), max_tokens=8) for word in asked))
    wrong = {
        number: (word, streamed_text(chunks))
        for number, (word, chunks) in enumerate(zip(asked, streams, strict=True))
        if streamed_text(chunks) != alone[word]
    }
    assert not wrong, f"{len(wrong)} of {STREAMS} answers are others, such as {next(iter(wrong.values()))}: {alone}"
    same("the number of ids", len({chunks[0]["id"] for chunks in streams}), STREAMS)


@check("all kinds of requests at once", needs=["chat/completions", "completions"], timeout_s=240)
async def mixed(subject: Subject) -> None:
    """Chats and completions, whole and streamed, at once, have the answers that they have alone."""

    async def chat() -> str:
        return text_of(await subject.chat(FRANCE, max_tokens=8))

    async def chat_stream() -> str:
        return streamed_text(await subject.chat_stream(STORY, max_tokens=8))

    async def completion() -> str:
        return text_of(await subject.complete("Once upon a time", max_tokens=8))

    async def completion_stream() -> str:
        return streamed_text(await subject.complete_stream("One, two, three,", max_tokens=8))

    kinds = (chat, chat_stream, completion, completion_stream)
    alone = [await kind() for kind in kinds]
    together = await asyncio.gather(*(kind() for _ in range(6) for kind in kinds))
    same("the answers", together, alone * 6)


@check("bad requests harm no good ones")
async def unharmed(subject: Subject) -> None:
    """Good requests among bad ones have the answers that they have alone."""

    async def good() -> str:
        return text_of(await subject.chat(FRANCE, max_tokens=8))

    async def bad(change: Document) -> int:
        body = {"messages": [{"role": "user", "content": FRANCE}], "max_tokens": 8, **change}
        return (await subject.post("/v1/chat/completions", body)).status_code

    alone = await good()
    changes: list[Document] = [{"n": 0}, {"messages": []}, {"temperature": -1}, {"max_tokens": 10**6}]
    answers = asyncio.gather(*(good() for _ in range(4)))
    statuses = await asyncio.gather(*map(bad, changes))
    same("the bad requests' statuses", statuses, [400] * 4)
    same("the answers", await answers, [alone] * 4)
