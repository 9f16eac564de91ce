"""Stop strings, made from the answer itself: ask once, then again with a piece of it as stop string."""

from tests.conformance.reading import (
    CJK,
    STORY,
    cut_across,
    finish_of,
    needs_a_model,
    pieces,
    same,
    streamed_finish,
    streamed_text,
    text_of,
)
from tests.conformance.subject import Subject
from tests.conformance.suite import check

NEVER = "\u2603 never"


async def stops_both_ways(subject: Subject, stop: list[str] | str, expected: str) -> None:
    """Whole and streamed, the answer is `expected` and its finish reason "stop"."""
    whole, chunks = await subject.chat(STORY, stop=stop), await subject.chat_stream(STORY, stop=stop)
    same(f"with stop {stop!r} the text", text_of(whole), expected)
    same(f"with stop {stop!r} the streamed text", streamed_text(chunks), expected)
    same("the finish reason", finish_of(whole), "stop")
    same("the streamed finish reason", streamed_finish(chunks), "stop")


@check("stop string ends the answer")
async def one(subject: Subject) -> None:
    """A stop string ends the answer before it, with the finish reason "stop", and is in no text."""
    word = text_of(await subject.chat(STORY)).split()[4]
    before = text_of(await subject.chat(STORY)).partition(f" {word}")[0]
    await stops_both_ways(subject, [f" {word}"], before)


@check("stop string across chunks")
async def across(subject: Subject) -> None:
    """A stop string that lies over the border of two events still stops, and no part of it is sent."""
    string, before = cut_across(pieces(await subject.chat_stream(STORY)), least=3)
    await stops_both_ways(subject, [string], before)


@check("stop string as a plain string")
async def plain(subject: Subject) -> None:
    """`stop` may be a string instead of a list."""
    string, before = cut_across(pieces(await subject.chat_stream(STORY)), least=3)
    await stops_both_ways(subject, string, before)


@check("earliest of several stop strings")
async def several(subject: Subject) -> None:
    """Of several stop strings the one that comes first ends the answer, wherever it is in the list."""
    parts = pieces(await subject.chat_stream(STORY))
    late, _ = cut_across(parts, least=6)
    early, before = cut_across(parts, least=2)
    assert early != late
    await stops_both_ways(subject, [NEVER, late, early], before)


@check("stop string that never comes")
async def never(subject: Subject) -> None:
    """A stop string that doesn't come changes nothing; nor does one whose beginning is the answer's end."""
    text = text_of(await subject.chat(STORY))
    stop = [NEVER, f"{text[-3:]}{NEVER}"]
    same("the text", text_of(await subject.chat(STORY, stop=stop)), text)
    chunks = await subject.chat_stream(STORY, stop=stop)
    same("the streamed text", streamed_text(chunks), text)
    same("the streamed finish reason", streamed_finish(chunks), "length")


@check("stop string at the very start")
async def at_start(subject: Subject) -> None:
    """A stop string with which the answer begins leaves an empty text, not null, and the reason "stop"."""
    start = text_of(await subject.chat(STORY))[:4]
    await stops_both_ways(subject, [start], "")


@check("stop string in a completion", needs=["completions"])
async def completion(subject: Subject) -> None:
    """In a completion a stop string across chunks stops, whole and streamed."""
    prompt = "Once upon a time"
    string, before = cut_across(pieces(await subject.complete_stream(prompt)), least=3)
    whole = await subject.complete(prompt, stop=[string])
    chunks = await subject.complete_stream(prompt, stop=[string])
    same("the texts", (text_of(whole), streamed_text(chunks)), (before, before))
    same("the finish reasons", (finish_of(whole), streamed_finish(chunks)), ("stop", "stop"))


@check("stop string in multi-byte text", needs=["completions"])
async def multi_byte(subject: Subject) -> None:
    """A stop string of characters of several bytes, and several tokens, stops and is not sent."""
    needs_a_model(subject, "its answers are ASCII")
    text = text_of(await subject.complete(CJK, max_tokens=24))
    assert len(text) >= 4 and not text.isascii(), f"no text of multi-byte characters: {text!r}"
    stop = text[2:4]
    expected = text[: text.find(stop)]
    whole = await subject.complete(CJK, stop=[stop], max_tokens=24)
    chunks = await subject.complete_stream(CJK, stop=[stop], max_tokens=24)
    same("the texts", (text_of(whole), streamed_text(chunks)), (expected, expected))
    same("the finish reasons", (finish_of(whole), streamed_finish(chunks)), ("stop", "stop"))


@check("stop string and usage")
async def usage(subject: Subject) -> None:
    """After a stop string no token is generated: usage counts those up to it."""
    parts = pieces(await subject.chat_stream(STORY))
    string, _ = cut_across(parts, least=3)
    used = (await subject.chat(STORY, stop=[string]))["usage"]["completion_tokens"]
    assert 1 <= used <= 12, f"completion_tokens: {used} of 16"
