"""Usage: right, and only where it is asked for."""

from tests.conformance.reading import FRANCE, STORY, count_tokens, same
from tests.conformance.subject import Document, Subject
from tests.conformance.suite import check

ASKED = {"stream_options": {"include_usage": True}}


def counted(usage: Document | None) -> tuple[int, int]:
    """The tokens of a prompt and of its answer."""
    assert usage is not None, "there is no usage"
    prompt, answer = usage["prompt_tokens"], usage["completion_tokens"]
    same("total_tokens", usage["total_tokens"], prompt + answer)
    return prompt, answer


@check("whole answer has usage")
async def whole(subject: Subject) -> None:
    """A whole answer has usage, whose completion tokens are those that were generated."""
    prompt, answer = counted((await subject.chat(STORY, max_tokens=9))["usage"])
    same("completion_tokens", answer, 9)
    assert prompt > 5, f"prompt_tokens: {prompt}"


@check("prompt tokens are the engine's own count", needs=["chat/completions", "tokenize"])
async def prompt_tokens(subject: Subject) -> None:
    """`prompt_tokens` of a chat is what /tokenize counts for its messages."""
    messages = [{"role": "user", "content": FRANCE}]
    expected = await count_tokens(subject, messages=messages, add_generation_prompt=True)
    prompt, _ = counted((await subject.chat(messages, max_tokens=1))["usage"])
    same("prompt_tokens", prompt, expected)


@check("completion prompt tokens are the engine's own count", needs=["completions", "tokenize"])
async def completion_prompt_tokens(subject: Subject) -> None:
    """`prompt_tokens` of a completion is what /tokenize counts for its prompt."""
    expected = await count_tokens(subject, prompt="The quick brown fox")
    prompt, _ = counted((await subject.complete("The quick brown fox", max_tokens=1))["usage"])
    same("prompt_tokens", prompt, expected)


@check("no usage in a stream unless asked for")
async def not_asked(subject: Subject) -> None:
    """Without `stream_options`, and with `include_usage: false`, no chunk has usage and none is without choices."""
    for options in ({}, {"stream_options": {"include_usage": False}}, {"stream_options": None}):
        for chunk in await subject.chat_stream(FRANCE, max_tokens=4, **options):
            assert chunk.get("usage") is None, f"with {options}, a chunk has usage: {chunk}"
            assert chunk["choices"], f"with {options}, a chunk has no choices: {chunk}"


@check("usage chunk when asked for")
async def asked(subject: Subject) -> None:
    """With `include_usage`, the last chunk has no choices and the whole answer's usage; the others have none."""
    *others, last = await subject.chat_stream(STORY, **ASKED)
    same("the last chunk's choices", last["choices"], [])
    same("the usage", counted(last["usage"]), counted((await subject.chat(STORY))["usage"]))
    for chunk in others:
        assert chunk["choices"], f"a chunk before the last has no choices: {chunk}"
        assert chunk.get("usage") is None, f"a chunk before the last has usage: {chunk}"


@check("usage chunk of a completion", needs=["completions"])
async def completion_asked(subject: Subject) -> None:
    """A completion's stream has its usage in a last chunk without choices, if asked for."""
    *others, last = await subject.complete_stream("Once upon a time", **ASKED)
    same("the last chunk's choices", last["choices"], [])
    same("completion_tokens", counted(last["usage"])[1], 16)
    assert all(chunk["choices"] for chunk in others), "a chunk before the last has no choices"
    assert all(chunk.get("usage") is None for chunk in others), "a chunk before the last has usage"


@check("usage of several choices", needs=["n"])
async def several_choices(subject: Subject) -> None:
    """With n choices the prompt counts once and every choice's tokens count."""
    alone, _ = counted((await subject.chat(STORY, max_tokens=1))["usage"])
    document = await subject.chat(STORY, n=3, max_tokens=5, temperature=1)
    same("the tokens", counted(document["usage"]), (alone, 15))


@check("usage of several prompts", needs=["completions"])
async def several_prompts(subject: Subject) -> None:
    """With several prompts in one completion, every prompt's and every answer's tokens count."""
    prompts = ["Once upon a time", "The quick brown fox jumps"]
    alone = [counted((await subject.complete(prompt, max_tokens=4))["usage"]) for prompt in prompts]
    together = counted((await subject.complete(prompts, max_tokens=4))["usage"])
    same("the tokens", together, (alone[0][0] + alone[1][0], alone[0][1] + alone[1][1]))
