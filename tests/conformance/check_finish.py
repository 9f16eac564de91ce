"""Why an answer ends, and how long it may be."""

from tests.conformance.reading import COUNT, FRANCE, STORY, finish_of, same, streamed_finish, text_of
from tests.conformance.subject import Subject
from tests.conformance.suite import check


@check("natural end is stop")
async def natural(subject: Subject) -> None:
    """An answer that the model ends itself has the reason "stop", whole and streamed, and no token of the end."""
    limit = 1000
    whole = await subject.chat(FRANCE, max_tokens=limit)
    same("the finish reason", finish_of(whole), "stop")
    assert whole["usage"]["completion_tokens"] < limit
    assert "<|" not in text_of(whole), f"the token that ends an answer is in its text: {text_of(whole)!r}"
    same("the streamed finish reason", streamed_finish(await subject.chat_stream(FRANCE, max_tokens=limit)), "stop")


@check("max_tokens is length")
async def max_tokens(subject: Subject) -> None:
    """`max_tokens` ends an answer after so many tokens, with the finish reason "length"."""
    whole = await subject.chat(COUNT, max_tokens=5)
    same("the finish reason", finish_of(whole), "length")
    same("completion_tokens", whole["usage"]["completion_tokens"], 5)
    same("the streamed finish reason", streamed_finish(await subject.chat_stream(COUNT, max_tokens=5)), "length")


@check("max_completion_tokens is honoured")
async def max_completion_tokens(subject: Subject) -> None:
    """`max_completion_tokens` does what `max_tokens` does."""
    whole = await subject.chat(COUNT, max_completion_tokens=5)
    same("the finish reason", finish_of(whole), "length")
    same("completion_tokens", whole["usage"]["completion_tokens"], 5)
    same("the text", text_of(whole), text_of(await subject.chat(COUNT, max_tokens=5)))


@check("one token")
async def one_token(subject: Subject) -> None:
    """`max_tokens: 1` is one token, and the reason is "length"."""
    whole = await subject.chat(STORY, max_tokens=1)
    same("completion_tokens", whole["usage"]["completion_tokens"], 1)
    same("the finish reason", finish_of(whole), "length")
    same("the streamed finish reason", streamed_finish(await subject.chat_stream(STORY, max_tokens=1)), "length")


@check("a completion has 16 tokens by default", needs=["completions"])
async def default_length(subject: Subject) -> None:
    """A completion without `max_tokens` has 16 tokens, as OpenAI's has."""
    document = await subject.ask("/v1/completions", {"prompt": "Once upon a time", "temperature": 0})
    same("completion_tokens", document["usage"]["completion_tokens"], 16)
    same("the finish reason", finish_of(document), "length")


@check("a chat without max_tokens ends by itself")
async def no_limit(subject: Subject) -> None:
    """Without `max_tokens` an answer may be as long as the context leaves, and ends where the model ends it."""
    document = await subject.ask(
        "/v1/chat/completions", {"messages": [{"role": "user", "content": FRANCE}], "temperature": 0}
    )
    same("the finish reason", finish_of(document), "stop")


@check("each of several prompts has its own end", needs=["completions"])
async def several_prompts(subject: Subject) -> None:
    """In a completion of several prompts each choice has its own text, in order, and a finish reason."""
    prompts = ["Once upon a time", "The quick brown fox jumps", "One, two, three,"]
    alone = [text_of(await subject.complete(prompt, max_tokens=6)) for prompt in prompts]
    document = await subject.complete(prompts, max_tokens=6)
    same("the texts", [text_of(document, index) for index in range(3)], alone)
    same("the finish reasons", [finish_of(document, index) for index in range(3)], ["length"] * 3)
    chunks = await subject.complete_stream(prompts, max_tokens=6)
    same("the streamed finish reasons", [streamed_finish(chunks, index) for index in range(3)], ["length"] * 3)
