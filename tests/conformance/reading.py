"""Reading answers: what checks take from whole documents and from streams, and the prompts that they share."""

from collections.abc import Iterable, Sequence
from typing import Any

from tests.conformance.server_config import NO_MODEL
from tests.conformance.subject import Document, Subject
from tests.conformance.suite import NotApplicableError

FRANCE = "What is the capital of France?"
STORY = "Write a long story about a lighthouse keeper."
COUNT = "Count to one hundred."
# A model that continues these goes on in kind, so that answers hold characters of several bytes and several tokens.
EMOJI = "🎉🎊🥳🎈🎉🎊🥳🎈🎉🎊🥳🎈🎉🎊🥳🎈"
CJK = "一二三四五六七八九十一二三四五六七八九十一二三"
CONTINUED = {"emoji": EMOJI, "CJK": CJK}


def needs_a_model(subject: Subject, why: str) -> None:
    """
    Raises:
        NotApplicableError: the engine runs no model.
    """
    computes = subject.witness.pools[-1] if subject.witness else subject.engine
    if NO_MODEL & {subject.engine, computes}:
        raise NotApplicableError(f"no model runs there: {why}")


def text_of(document: Document, index: int = 0) -> str:
    """A choice's text, of a whole answer of either endpoint."""
    choice = document["choices"][index]
    assert choice["index"] == index, f"choice {index} says that it is {choice['index']}"
    text: str = choice["message"]["content"] if "message" in choice else choice["text"]
    return text


def finish_of(document: Document, index: int = 0) -> str:
    reason: str = document["choices"][index]["finish_reason"]
    return reason


def choices_of(chunks: Iterable[Document], index: int = 0) -> list[Document]:
    """A choice's pieces, of a stream of either endpoint."""
    return [choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == index]


def pieces(chunks: Iterable[Document], index: int = 0) -> list[str]:
    """A choice's texts, as they came; those without any are left out."""
    texts = (
        choice["delta"].get("content") if "delta" in choice else choice["text"] for choice in choices_of(chunks, index)
    )
    return [text for text in texts if text]


def streamed_text(chunks: Iterable[Document], index: int = 0) -> str:
    return "".join(pieces(chunks, index))


def streamed_finish(chunks: Iterable[Document], index: int = 0) -> str:
    """The one finish reason of a choice."""
    reasons = [choice["finish_reason"] for choice in choices_of(chunks, index)]
    ends = [reason for reason in reasons if reason is not None]
    assert len(ends) == 1, f"choice {index} of a stream has the finish reasons {reasons}"
    return str(ends[0])


def same(what: str, found: Any, expected: Any) -> None:
    assert found == expected, f"{what}: {found!r}, not {expected!r}"


def tokens_of(document: Document, index: int = 0) -> list[Document]:
    """A choice's tokens with their logprobs, of a whole chat answer."""
    logprobs = document["choices"][index]["logprobs"]
    assert logprobs is not None, "there are no logprobs"
    tokens: list[Document] = logprobs["content"]
    return tokens


def streamed_tokens(chunks: Iterable[Document], index: int = 0) -> list[Document]:
    found = (choice["logprobs"] for choice in choices_of(chunks, index) if choice.get("logprobs"))
    return [token for logprobs in found for token in logprobs["content"]]


async def count_tokens(subject: Subject, **of: Any) -> int:
    """Of a prompt, or of messages, as the engine itself counts."""
    document = await subject.ask("/tokenize", of)
    count: int = document["count"]
    same("the count of tokens", count, len(document["tokens"]))
    return count


def cut_across(parts: Sequence[str], least: int = 1) -> tuple[str, str]:
    """A string that crosses the border of two pieces and occurs nowhere earlier, and the text before it."""
    for border in range(max(least, 1), len(parts)):
        before, after = "".join(parts[:border]), "".join(parts[border:])
        for length in range(1, 6):
            string = before[-length:] + after[:length]
            at = len(before) - length
            if at > 0 and len(string) == 2 * length and (before + after).find(string) == at:
                return string, before[:-length]
    raise AssertionError(f"no string crosses a border in {list(parts)}")
