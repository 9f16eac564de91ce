"""Logprobs, of chats and of completions."""

import math

from tests.conformance.reading import STORY, choices_of, same, streamed_tokens, text_of, tokens_of
from tests.conformance.subject import Document, Subject
from tests.conformance.suite import check

NEAR = 2e-2  # in natural log: batches of other sizes round differently


def near(found: float, expected: float) -> bool:
    return math.isclose(found, expected, abs_tol=NEAR)


@check("logprobs: true alone", needs=["logprobs"])
async def alone(subject: Subject) -> None:
    """`logprobs: true` has a token, its logprob of at most 0 and its bytes for each token, without alternatives."""
    whole = await subject.chat(STORY, logprobs=True, max_tokens=6)
    tokens = tokens_of(whole)
    same("the number of tokens", len(tokens), 6)
    for token in tokens:
        assert token["logprob"] <= 0, f"a logprob above 0: {token}"
        same("the alternatives", token["top_logprobs"], [])
    same("the text", "".join(token["token"] for token in tokens), text_of(whole))


@check("top_logprobs: 0", needs=["logprobs"])
async def top_zero(subject: Subject) -> None:
    """`top_logprobs: 0` is as good as none."""
    tokens = tokens_of(await subject.chat(STORY, logprobs=True, top_logprobs=0, max_tokens=4))
    same("the number of tokens", len(tokens), 4)
    same("the alternatives", [token["top_logprobs"] for token in tokens], [[]] * 4)


@check("top_logprobs: 3", needs=["logprobs"])
async def top_three(subject: Subject) -> None:
    """`top_logprobs: 3` has the three likeliest tokens, in order; at temperature 0 the first is the chosen one."""
    for token in tokens_of(await subject.chat(STORY, logprobs=True, top_logprobs=3, max_tokens=4)):
        top = [entry["logprob"] for entry in token["top_logprobs"]]
        same("the number of alternatives", len(top), 3)
        same("the alternatives' order", top, sorted(top, reverse=True))
        same("the likeliest", token["top_logprobs"][0]["token"], token["token"])
        assert near(top[0], token["logprob"]), f"the chosen token's logprob is {token['logprob']}, not {top[0]}"
        assert sum(map(math.exp, top)) <= 1 + NEAR, f"probabilities of more than 1: {top}"


@check("logprobs in a stream", needs=["logprobs"])
async def streamed(subject: Subject) -> None:
    """A stream has the logprobs of the whole answer, each with the text that it belongs to."""
    fields = {"logprobs": True, "top_logprobs": 2, "max_tokens": 8}
    found = streamed_tokens(await subject.chat_stream(STORY, **fields))
    expected = tokens_of(await subject.chat(STORY, **fields))
    same("the tokens", [token["token"] for token in found], [token["token"] for token in expected])
    for token, whole in zip(found, expected, strict=True):
        assert near(token["logprob"], whole["logprob"]), f"{token} in the stream, {whole} in the whole answer"
        same("the number of alternatives", len(token["top_logprobs"]), 2)


@check("no logprobs unless asked for")
async def not_asked(subject: Subject) -> None:
    """Without `logprobs`, and with `logprobs: false`, there are none, whole and streamed."""
    for fields in ({}, {"logprobs": False}, {"logprobs": None}):
        [choice] = (await subject.chat(STORY, max_tokens=2, **fields))["choices"]
        assert choice.get("logprobs") is None, f"with {fields} there are logprobs: {choice['logprobs']}"
        chunks = await subject.chat_stream(STORY, max_tokens=2, **fields)
        assert all(piece.get("logprobs") is None for piece in choices_of(chunks)), f"with {fields} a chunk has some"


@check("completion logprobs: 0", needs=["completions", "logprobs"])
async def completion_zero(subject: Subject) -> None:
    """`logprobs: 0` of a completion has the chosen tokens' own logprobs."""
    whole = await subject.complete("Once upon a time", logprobs=0, max_tokens=5)
    logprobs = _of_completion(whole)
    same("the number of tokens", len(logprobs["tokens"]), 5)
    assert all(value <= 0 for value in logprobs["token_logprobs"]), f"a logprob above 0: {logprobs}"
    same("the text", "".join(logprobs["tokens"]), text_of(whole))


@check("completion logprobs: 2", needs=["completions", "logprobs"])
async def completion_two(subject: Subject) -> None:
    """`logprobs: 2` of a completion has two alternatives a token, and each token's offset in the text."""
    whole = await subject.complete("Once upon a time", logprobs=2, max_tokens=5)
    logprobs = _of_completion(whole)
    lengths = {key: len(logprobs[key]) for key in ("tokens", "token_logprobs", "top_logprobs", "text_offset")}
    same("the lengths of the lists", set(lengths.values()), {5})
    for token, value, top in zip(logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"], strict=True):
        assert len(top) >= 2, f"fewer than two alternatives: {top}"
        assert near(top[token], value), f"{token!r} has the logprob {value}, and {top[token]} among alternatives"
    offsets = [offset - logprobs["text_offset"][0] for offset in logprobs["text_offset"]]
    same("the text at the last offset", text_of(whole)[offsets[-1] :], logprobs["tokens"][-1])


@check("logprobs of each choice", needs=["logprobs", "n"])
async def of_choices(subject: Subject) -> None:
    """Each of n choices has the logprobs of its own tokens."""
    document = await subject.chat(STORY, logprobs=True, n=2, temperature=1, max_tokens=6)
    for index in range(2):
        text = "".join(token["token"] for token in tokens_of(document, index))
        assert text_of(document, index).startswith(text.partition("<|")[0].rstrip("\ufffd")), f"not its tokens: {text}"


def _of_completion(document: Document) -> Document:
    logprobs: Document | None = document["choices"][0]["logprobs"]
    assert logprobs is not None, "there are no logprobs"
    return logprobs
