"""Prompts of every shape and length."""

import json
from typing import Any

from tests.conformance.reading import FRANCE, STORY, finish_of, same, text_of
from tests.conformance.subject import Subject
from tests.conformance.suite import check

CHAT = "/v1/chat/completions"


@check("content as parts")
async def parts(subject: Subject) -> None:
    """Content as a list of text parts is the text, also in a system message."""
    plain = await subject.chat([{"role": "system", "content": "Be brief."}, {"role": "user", "content": FRANCE}])
    turns = [("system", "Be brief."), ("user", FRANCE)]
    document = await subject.chat([{"role": role, "content": [{"type": "text", "text": text}]} for role, text in turns])
    same("the text", text_of(document), text_of(plain))
    same("the usage", document["usage"]["prompt_tokens"], plain["usage"]["prompt_tokens"])


@check("several text parts")
async def several_parts(subject: Subject) -> None:
    """All text parts of a message reach the model."""
    pieces = ["What is the capital ", "of France?"]
    one = await subject.chat([{"role": "user", "content": [{"type": "text", "text": pieces[0]}]}], max_tokens=1)
    both = await subject.chat(
        [{"role": "user", "content": [{"type": "text", "text": piece} for piece in pieces]}], max_tokens=1
    )
    assert both["usage"]["prompt_tokens"] > one["usage"]["prompt_tokens"], "the second part is ignored"


@check("system message only")
async def system_only(subject: Subject) -> None:
    """A conversation of nothing but a system message is answered."""
    document = await subject.chat([{"role": "system", "content": "You tell jokes."}], max_tokens=6)
    assert text_of(document), "the answer is empty"


@check("developer message")
async def developer(subject: Subject) -> None:
    """A `developer` message, OpenAI's newer name of a system message, reaches the model."""
    alone = await subject.chat(FRANCE, max_tokens=1)
    turns = [{"role": "developer", "content": "Answer in French, please."}, {"role": "user", "content": FRANCE}]
    document = await subject.chat(turns, max_tokens=6)
    assert text_of(document), "the answer is empty"
    assert document["usage"]["prompt_tokens"] != alone["usage"]["prompt_tokens"], "the message is ignored"


@check("several turns")
async def turns(subject: Subject) -> None:
    """A conversation with answers of the assistant, and one that names its author, is answered."""
    conversation = [
        {"role": "user", "content": "My name is Ada.", "name": "ada"},
        {"role": "assistant", "content": "Hello, Ada."},
        {"role": "user", "content": "What is my name?"},
    ]
    shorter = await subject.chat(conversation[:1], max_tokens=1)
    document = await subject.chat(conversation, max_tokens=6)
    assert text_of(document), "the answer is empty"
    assert document["usage"]["prompt_tokens"] > shorter["usage"]["prompt_tokens"] + 5, "turns are ignored"


@check("empty content")
async def empty_content(subject: Subject) -> None:
    """An empty message is answered, as it is by OpenAI."""
    same("completion_tokens", (await subject.chat("", max_tokens=4))["usage"]["completion_tokens"], 4)


@check("empty completion prompt", needs=["completions"])
async def empty_prompt(subject: Subject) -> None:
    """An empty prompt is answered, or is a 400 that names it: never a 500, never a hang."""
    response = await subject.post("/v1/completions", {"prompt": "", "max_tokens": 4})
    assert response.status_code in (200, 400), f"{response.status_code}: {response.text[:300]}"
    if response.status_code == 400:
        same("param", response.json()["error"]["param"], "prompt")
    else:
        assert response.json()["usage"]["completion_tokens"] <= 4


@check("very long prompt")
async def long_prompt(subject: Subject) -> None:
    """A prompt of half of the context is answered, and every token of it counts."""
    length = min(subject.context_length, 4096) // 2
    document = await subject.chat("one two three four " * (length // 4), max_tokens=3)
    used = document["usage"]["prompt_tokens"]
    assert used >= length, f"prompt_tokens: {used}, of {length} words"
    assert 1 <= document["usage"]["completion_tokens"] <= 3  # the model may find nothing to say to it


@check("prompt that doesn't fit")
async def over_long(subject: Subject) -> None:
    """A prompt longer than the context is a 400 that says so, whole and streamed, and names the limit."""
    limit = subject.context_length
    for stream in (False, True):
        body = {"messages": [{"role": "user", "content": "word " * (limit + 500)}], "stream": stream}
        response = await subject.post(CHAT, {**body, "max_tokens": 8})
        too_long(response.status_code, response.json(), limit, "messages")


@check("prompt and answer that don't fit together")
async def together(subject: Subject) -> None:
    """`max_tokens` beyond what the prompt leaves is a 400 that names the limit."""
    limit = subject.context_length
    body = {"model": subject.model, "messages": [{"role": "user", "content": FRANCE}], "max_tokens": limit}
    # Streamed, so that an engine that answers nevertheless tells at once.
    async with subject.client.stream("POST", CHAT, json={**body, "stream": True}) as response:
        assert response.status_code != 200, f"{FRANCE!r} and {limit} tokens are answered in a context of {limit}"
        too_long(response.status_code, json.loads(await response.aread()), limit, None)


@check("completion prompt that doesn't fit", needs=["completions"])
async def over_long_completion(subject: Subject) -> None:
    """A completion's prompt longer than the context is a 400 that names the limit and the field."""
    limit = subject.context_length
    response = await subject.post("/v1/completions", {"prompt": "word " * (limit + 500), "max_tokens": 8})
    too_long(response.status_code, response.json(), limit, "prompt")


def too_long(status: int, document: dict[str, Any], limit: int, param: str | None) -> None:
    assert status == 400, f"{status}: {str(document)[:300]}"
    error = document["error"]
    same("the code", error["code"], "context_length_exceeded")
    assert str(limit) in error["message"], f"the limit of {limit} is not in the message: {error['message']}"
    if param:
        same("param", error["param"], param)


@check("prompt as tokens", needs=["completions", "tokenize"])
async def as_tokens(subject: Subject) -> None:
    """A completion's prompt as token ids is that of its text; so are several."""
    prompts = ["Once upon a time", "One, two, three,"]
    ids = [(await subject.ask("/tokenize", {"prompt": prompt}))["tokens"] for prompt in prompts]
    expected = [text_of(await subject.complete(prompt, max_tokens=6)) for prompt in prompts]
    same("the text", text_of(await subject.complete(ids[0], max_tokens=6)), expected[0])
    document = await subject.complete(ids, max_tokens=6)
    same("the texts", [text_of(document, index) for index in range(2)], expected)


@check("echo", needs=["completions"], may_refuse=["echo"])
async def echo(subject: Subject) -> None:
    """`echo` puts the prompt before the completion, or is refused."""
    plain = text_of(await subject.complete("Once upon a time", max_tokens=4))
    found = text_of(await subject.complete("Once upon a time", max_tokens=4, echo=True))
    same("the text", found, "Once upon a time" + plain)


@check("null is as good as absent")
async def nulls(subject: Subject) -> None:
    """Fields that are null mean what leaving them out means."""
    names = ["stop", "seed", "tools", "tool_choice", "response_format", "logit_bias", "stream_options", "user"]
    names += ["top_p", "n", "logprobs", "top_logprobs", "presence_penalty", "frequency_penalty", "stream"]
    plain = text_of(await subject.chat(STORY, max_tokens=6))
    document = await subject.chat(STORY, max_tokens=6, **dict.fromkeys(names))
    same("the text", text_of(document), plain)
    same("the finish reason", finish_of(document), "length")


@check("fields that ask for nothing")
async def harmless(subject: Subject) -> None:
    """Clients' own notes are taken: user, metadata, service_tier, safety_identifier, prompt_cache_key, empty tools."""
    notes: dict[str, Any] = {
        "user": "ada",
        "metadata": {"team": "a"},
        "service_tier": "auto",
        "safety_identifier": "x",
        "prompt_cache_key": "y",
        "response_format": {"type": "text"},
    }
    plain = text_of(await subject.chat(STORY, max_tokens=6))
    same("the text", text_of(await subject.chat(STORY, max_tokens=6, **notes)), plain)
