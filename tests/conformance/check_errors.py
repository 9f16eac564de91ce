"""What is wrong with a request is a 4xx in OpenAI's envelope that names the field, whole and streamed."""

import json
from collections.abc import Mapping
from typing import Any

import httpx

from tests.conformance.reading import FRANCE, same
from tests.conformance.subject import Document, Subject
from tests.conformance.suite import check

CHAT = "/v1/chat/completions"
KEYS = {"message", "type", "param", "code"}
GOOD: Document = {"messages": [{"role": "user", "content": FRANCE}], "temperature": 0, "max_tokens": 8}
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}


def envelope(response: httpx.Response, status: int, param: str | None = None) -> Document:
    """The error of a response, which must be of this status, have OpenAI's envelope, and name `param`, if given."""
    assert response.status_code == status, f"{response.status_code}, not {status}: {response.text[:500]}"
    error: Document = response.json()["error"]
    same("the error's keys", set(error), KEYS)
    assert len(error["message"]) > 10, f"the message says nothing: {error}"
    if status < 500:
        same("the type", error["type"], "invalid_request_error")
    if param is not None:
        same(f"param, of the message {error['message']!r},", error["param"], param)
    return error


# What is changed in a good request, and the param that the error must name; None: any.
BAD: Mapping[str, tuple[Document | bytes, str | None]] = {
    "empty body": (b"", None),
    "broken JSON": (b'{"model": ', None),
    "not an object": (b"[1]", None),
    "invalid UTF-8": (b'{"model": "\xff"}', None),
    "no model": ({"model": None}, "model"),
    "model of a wrong type": ({"model": 7}, "model"),
    "stream of a wrong type": ({"stream": "yes"}, "stream"),
    "no messages": ({"messages": []}, "messages"),
    "messages of a wrong type": ({"messages": "hello"}, "messages"),
    "a message without a role": ({"messages": [{"content": "x"}]}, "messages[0].role"),
    "content of a wrong type": ({"messages": [{"role": "user", "content": 4}]}, "messages[0].content"),
    "temperature of a wrong type": ({"temperature": "hot"}, "temperature"),
    "temperature out of range": ({"temperature": -1}, "temperature"),
    "top_p out of range": ({"top_p": 2}, "top_p"),
    "n out of range": ({"n": 0}, "n"),
    "max_tokens out of range": ({"max_tokens": -1}, "max_tokens"),
    "max_tokens of a wrong type": ({"max_tokens": "many"}, "max_tokens"),
    "unknown field": ({"temprature": 1}, "temprature"),
    "too many top_logprobs": ({"logprobs": True, "top_logprobs": 1000}, None),
    "top_logprobs without logprobs": ({"top_logprobs": 2}, "top_logprobs"),
    "stop of a wrong type": ({"stop": 5}, "stop"),
    "seed out of range": ({"seed": 2**70}, "seed"),
    "unknown response_format": ({"response_format": {"type": "yaml"}}, None),
}


def _register(what: str) -> None:
    change, param = BAD[what]

    async def run(subject: Subject) -> None:
        for stream in (False, True):
            body = (
                change
                if isinstance(change, bytes)
                else json.dumps({"model": subject.model, **GOOD, "stream": stream, **change}).encode()
            )
            envelope(await subject.post(CHAT, body), 400, param)

    run.__doc__ = f"{what[0].upper()}{what[1:]}: a 400 in OpenAI's envelope" + (
        f" that names `{param}`." if param else "."
    )
    check(f"400: {what}")(run)


for _what in BAD:
    _register(_what)


@check("400: stream_options without stream")
async def stream_options(subject: Subject) -> None:
    """`stream_options` without `stream` is a 400 that names it."""
    body = {**GOOD, "stream_options": {"include_usage": True}}
    envelope(await subject.post(CHAT, body), 400, "stream_options")


@check("400: an image for a model that sees none")
async def image(subject: Subject) -> None:
    """An image is a 400 that names the part and the engine, unless the model takes images."""
    if "image" in subject.capabilities["parts"]:
        return
    content = [{"type": "text", "text": "What is this?"}, IMAGE]
    response = await subject.post(CHAT, {**GOOD, "messages": [{"role": "user", "content": content}]})
    error = envelope(response, 400, "messages[0].content[1]")
    assert subject.engine in error["message"], f"the message doesn't name the engine: {error['message']}"


@check("400: a URL that the server would fetch")
async def foreign_url(subject: Subject) -> None:
    """No request has the server fetch a URL: an image by URL is a 400."""
    content = [{"type": "image_url", "image_url": {"url": "http://127.0.0.1:9/x.png"}}]
    envelope(await subject.post(CHAT, {**GOOD, "messages": [{"role": "user", "content": content}]}), 400)


@check("400: a field is misspelt, the nearest is told")
async def nearest(subject: Subject) -> None:
    """The error of an unknown field tells the nearest one that there is."""
    error = envelope(await subject.post(CHAT, {**GOOD, "max_token": 4}), 400, "max_token")
    assert "max_tokens" in error["message"], f"the nearest field isn't told: {error['message']}"


@check("400: a completion without a prompt", needs=["completions"])
async def no_prompt(subject: Subject) -> None:
    """A completion without a prompt, and with one of a wrong type, is a 400 that names it."""
    for body in ({}, {"prompt": 7}, {"prompt": [["x"]]}):
        response = await subject.post("/v1/completions", {**body, "max_tokens": 4})
        error = envelope(response, 400)
        assert str(error["param"]).startswith("prompt"), f"param is {error['param']!r}: {error['message']}"


@check("400: tokens outside the vocabulary", needs=["completions"])
async def outside(subject: Subject) -> None:
    """Token ids that the model doesn't have are a 400, whole and streamed, and the engine lives on."""
    for stream in (False, True):
        body = {"prompt": [1, 10**7], "max_tokens": 4, "stream": stream}
        envelope(await subject.post("/v1/completions", body), 400)
    await subject.complete("Once upon a time", max_tokens=1)


@check("404: a model that isn't there")
async def unknown_model(subject: Subject) -> None:
    """An unknown model is a 404 that names the models there are."""
    response = await subject.client.post(CHAT, json={**GOOD, "model": "gpt-17"})
    error = envelope(response, 404, "model")
    same("the code", error["code"], "model_not_found")
    assert subject.model in error["message"], f"the message doesn't name {subject.model}: {error['message']}"


@check("404 and 405: endpoints that aren't there")
async def unknown_endpoint(subject: Subject) -> None:
    """An unknown path and a wrong method have OpenAI's envelope too."""
    envelope(await subject.client.get("/v1/nothing"), 404)
    envelope(await subject.client.get(CHAT), 405)


@check("an error of a stream is a status")
async def streamed_error(subject: Subject) -> None:
    """An error that is found before the first token has its own status and is JSON, though a stream was asked for."""
    response = await subject.post(CHAT, {**GOOD, "max_tokens": 10**6, "stream": True})
    error: dict[str, Any] = envelope(response, 400)
    same("the media type", response.headers["content-type"].partition(";")[0], "application/json")
    assert "1000000" in error["message"], f"what was asked for isn't told: {error['message']}"
