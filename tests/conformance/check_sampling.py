"""Sampling: choices, seeds, and the parameters that change what is chosen."""

from typing import Any

from tests.conformance.reading import (
    STORY,
    choices_of,
    finish_of,
    needs_a_model,
    same,
    streamed_finish,
    streamed_text,
    text_of,
)
from tests.conformance.subject import Subject
from tests.conformance.suite import check

WARM = {"temperature": 1.0, "max_tokens": 12}


@check("n choices", needs=["n"])
async def choices(subject: Subject) -> None:
    """n: 3 has three choices, in order, each with its own text and finish reason."""
    document = await subject.chat(STORY, **WARM, n=3)
    same("the indexes", [choice["index"] for choice in document["choices"]], [0, 1, 2])
    same("the finish reasons", [finish_of(document, index) for index in range(3)], ["length"] * 3)
    texts = {text_of(document, index) for index in range(3)}
    assert len(texts) > 1, f"all choices are the same: {texts}"


@check("n choices in a stream", needs=["n"])
async def streamed_choices(subject: Subject) -> None:
    """In a stream each of n choices has a role, its text and one finish reason, told apart by `index`."""
    chunks = await subject.chat_stream(STORY, **WARM, n=3)
    same("the indexes", {choice["index"] for chunk in chunks for choice in chunk["choices"]}, {0, 1, 2})
    for index in range(3):
        same("the first delta's role", choices_of(chunks, index)[0]["delta"].get("role"), "assistant")
        same("the finish reason", streamed_finish(chunks, index), "length")
    assert len({streamed_text(chunks, index) for index in range(3)}) > 1, "all choices are the same"


@check("n greedy choices are the same", needs=["n"], may_refuse=["n"])
async def greedy_choices(subject: Subject) -> None:
    """At temperature 0 both of two choices are the one greedy answer, or more than one is refused."""
    alone = text_of(await subject.chat(STORY))
    document = await subject.chat(STORY, n=2)
    same("the texts", [text_of(document, index) for index in range(2)], [alone, alone])


@check("n choices of a completion", needs=["completions", "n"])
async def completion_choices(subject: Subject) -> None:
    """A completion of two prompts with n: 2 has four choices, the first prompt's first."""
    needs_a_model(subject, "what tells the prompts is that a small top_p is greedy, and nothing is sampled")
    prompts = ["Once upon a time", "One, two, three,"]
    greedy: dict[str, Any] = {"temperature": 1, "top_p": 1e-4, "max_tokens": 5}
    alone = [text_of(await subject.complete(prompt, **greedy)) for prompt in prompts]
    document = await subject.complete(prompts, **greedy, n=2)
    same("the texts", [text_of(document, index) for index in range(4)], [alone[0], alone[0], alone[1], alone[1]])


@check("seed repeats", may_refuse=["seed"])
async def seed(subject: Subject) -> None:
    """The same seed has the same answer, whole and streamed; another seed has another."""
    first, second = [text_of(await subject.chat(STORY, **WARM, seed=7)) for _ in range(2)]
    same("the second answer", second, first)
    same("the streamed answer", streamed_text(await subject.chat_stream(STORY, **WARM, seed=7)), first)
    others = {text_of(await subject.chat(STORY, **WARM, seed=number)) for number in (1, 2, 3)}
    assert len(others | {first}) > 1, f"all seeds have the answer {first!r}"


@check("seed and n", needs=["n"], may_refuse=["seed"])
async def seed_and_n(subject: Subject) -> None:
    """With a seed, n choices differ from each other and are the same each time."""
    runs = [await subject.chat(STORY, **WARM, seed=7, n=3) for _ in range(2)]
    first, second = [[text_of(run, index) for index in range(3)] for run in runs]
    same("the second answers", second, first)
    assert len(set(first)) > 1, f"all choices are the same: {first}"


@check("no seed, no repeat")
async def unseeded(subject: Subject) -> None:
    """At temperature 1 without a seed, five answers aren't all the same."""
    texts = {text_of(await subject.chat(STORY, **WARM)) for _ in range(5)}
    assert len(texts) > 1, f"all answers are {texts}"


@check("a small top_p is greedy")
async def top_p(subject: Subject) -> None:
    """With `top_p` next to nothing only the likeliest token is left, whatever the temperature."""
    needs_a_model(subject, "nothing is sampled")
    greedy = text_of(await subject.chat(STORY))
    same("the answer", text_of(await subject.chat(STORY, temperature=1.5, top_p=1e-4)), greedy)


@check("frequency_penalty", needs=["completions"], may_refuse=["frequency_penalty"])
async def frequency_penalty(subject: Subject) -> None:
    """A strong frequency penalty changes an answer that repeats itself, or the field is refused."""
    await changes_what_repeats(subject, "frequency_penalty")


@check("presence_penalty", needs=["completions"], may_refuse=["presence_penalty"])
async def presence_penalty(subject: Subject) -> None:
    """A strong presence penalty changes an answer that repeats itself, or the field is refused."""
    await changes_what_repeats(subject, "presence_penalty")


async def changes_what_repeats(subject: Subject, penalty: str) -> None:
    prompt = "We went to the beach and"  # a small model goes on in sentences that begin alike
    plain = text_of(await subject.complete(prompt, max_tokens=20))
    changed = text_of(await subject.complete(prompt, max_tokens=20, **{penalty: 2.0}))
    assert changed != plain, f"with {penalty} 2 the answer is still {plain!r}"


@check("logit_bias bans a token", needs=["chat/completions", "tokenize"], may_refuse=["logit_bias"])
async def logit_bias(subject: Subject) -> None:
    """A bias of -100 keeps a token out of the answer, or the field is refused."""
    first = text_of(await subject.chat(STORY, max_tokens=1))
    [token] = (await subject.ask("/tokenize", {"prompt": first, "add_special_tokens": False}))["tokens"]
    other = text_of(await subject.chat(STORY, max_tokens=1, logit_bias={str(token): -100}))
    assert other != first, f"the banned token {first!r} is still chosen"


@check("neutral penalties change nothing")
async def neutral(subject: Subject) -> None:
    """Penalties of 0, no bias, and top_p 1 are the same as leaving them out, on every engine."""
    plain = text_of(await subject.chat(STORY))
    fields = {"frequency_penalty": 0, "presence_penalty": 0, "logit_bias": {}, "top_p": 1, "n": 1}
    same("the answer", text_of(await subject.chat(STORY, **fields)), plain)
