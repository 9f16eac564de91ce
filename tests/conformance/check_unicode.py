"""Characters of several bytes, in prompts and in answers, arrive whole."""

from tests.conformance.reading import (
    CJK,
    CONTINUED,
    EMOJI,
    needs_a_model,
    pieces,
    same,
    streamed_text,
    text_of,
    tokens_of,
)
from tests.conformance.subject import Subject
from tests.conformance.suite import check

MIXED = "Repeat exactly: 🎉👩‍👩‍👧 日本語 naïve café"
BROKEN = "\ufffd"


async def arrives_whole(subject: Subject, what: str) -> None:
    needs_a_model(subject, "its answers are ASCII")
    chunks = await subject.complete_stream(CONTINUED[what], max_tokens=24)
    parts = pieces(chunks)
    assert any(not part.isascii() for part in parts), f"no {what} in {parts}"
    # An answer that is cut in the middle of a character may end with a mark of it; nothing else may have one.
    assert all(BROKEN not in part for part in parts[:-1]), f"a broken character in {parts}"
    whole = text_of(await subject.complete(CONTINUED[what], max_tokens=24))
    same("the streamed text", streamed_text(chunks), whole)


@check("emoji arrive whole", needs=["completions"])
async def emoji(subject: Subject) -> None:
    """Emoji, each of several tokens, are in one chunk each, and the stream equals the whole answer."""
    await arrives_whole(subject, "emoji")


@check("CJK arrives whole", needs=["completions"])
async def cjk(subject: Subject) -> None:
    """Chinese characters, each of several tokens, are in one chunk each, and the stream equals the whole answer."""
    await arrives_whole(subject, "CJK")


@check("mixed scripts in a chat")
async def mixed(subject: Subject) -> None:
    """A chat about emoji, joined emoji, Japanese and accents streams what the whole answer says."""
    chunks, whole = await subject.chat_stream(MIXED, max_tokens=48), await subject.chat(MIXED, max_tokens=48)
    same("the streamed text", streamed_text(chunks), text_of(whole))
    assert all(BROKEN not in part for part in pieces(chunks)[:-1])


@check("escaped and plain JSON are one request")
async def escapes(subject: Subject) -> None:
    """A prompt written with \\u escapes, surrogate pairs too, is the prompt written in UTF-8."""
    plain = f'{{"model": "{subject.model}", "messages": [{{"role": "user", "content": "{MIXED}"}}]'
    ends = ', "temperature": 0, "max_tokens": 8}'
    escaped = "".join(
        f"\\u{unit:04x}" if not character.isascii() else character for character in plain for unit in _units(character)
    )
    answers = [await subject.post("/v1/chat/completions", (text + ends).encode()) for text in (plain, escaped)]
    same("the statuses", [answer.status_code for answer in answers], [200, 200])
    documents = [answer.json() for answer in answers]
    same("the texts", text_of(documents[1]), text_of(documents[0]))
    same("the usage", documents[1]["usage"]["prompt_tokens"], documents[0]["usage"]["prompt_tokens"])


def _units(character: str) -> list[int]:
    """UTF-16 code units, as JSON escapes are."""
    data = character.encode("utf-16-be")
    return [int.from_bytes(data[index : index + 2]) for index in range(0, len(data), 2)]


@check("tokenize and detokenize are inverse", needs=["tokenize", "detokenize"])
async def inverse(subject: Subject) -> None:
    """The text of a text's tokens is the text, in every script."""
    for text in ("Hello, world!", EMOJI, CJK, "👩‍👩‍👧 naïve café\n\ttab"):
        tokens = (await subject.ask("/tokenize", {"prompt": text, "add_special_tokens": False}))["tokens"]
        same("the text", (await subject.ask("/detokenize", {"tokens": tokens}))["prompt"], text)


@check("token bytes join to the text", needs=["completions", "chat/completions", "logprobs"])
async def token_bytes(subject: Subject) -> None:
    """The `bytes` of an answer's tokens, joined, are its text in UTF-8, also where a character is several tokens."""
    whole = await subject.chat(MIXED, max_tokens=32, logprobs=True)
    tokens = tokens_of(whole)
    joined = bytes(byte for token in tokens for byte in token["bytes"])
    text = text_of(whole).rstrip(BROKEN)
    found = joined.decode(errors="ignore").replace("<|im_end|>", "")
    assert found.startswith(text), f"the tokens' bytes are {found!r}, the text is {text!r}"
