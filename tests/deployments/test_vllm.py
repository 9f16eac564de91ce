"""What of the vLLM adapter runs without vLLM. Its schemas are stood in for by small ones of the same manners."""

import json
import sys
from collections.abc import AsyncGenerator
from contextlib import aclosing
from itertools import accumulate
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict, ValidationError

from deployments.engine import Endpoint, EngineRequest, PoolModel
from deployments.errors import ApiError
from deployments.vllm import VllmArgs, VllmEngine, api_error, events, parse, translate

DONE = "data: [DONE]\n\n"


class Schema(BaseModel):
    """As vLLM's: coerces what it can, keeps what it doesn't know, has fields of its own and lacks some of OpenAI's."""

    model_config = ConfigDict(extra="allow")

    messages: list[dict[str, str]] = []
    model: str | None = None
    temperature: float | None = None
    top_k: int | None = None
    request_id: str = "drawn"


def request(endpoint: Endpoint = "chat/completions", **fields: Any) -> EngineRequest:
    return EngineRequest(endpoint, json.dumps(fields).encode(), "id1")


def parsed(**fields: Any) -> Schema:
    found = parse(Schema, request(**fields), "served")
    assert isinstance(found, Schema)
    return found


def refused(body: bytes) -> ApiError:
    with pytest.raises(ApiError) as caught:
        parse(Schema, EngineRequest("chat/completions", body, "id1"), "served")
    assert (caught.value.status, caught.value.type) == (400, "invalid_request_error")
    return caught.value


def refused_with(**fields: Any) -> ApiError:
    return refused(json.dumps(fields).encode())


def test_a_request_becomes_vllm_s_own_under_the_one_name_it_knows() -> None:
    found = parsed(model="smollm2@vllm", request_id="theirs", temperature=0.5, messages=[{"role": "user"}])
    assert (found.model, found.request_id) == ("served", "id1")
    assert (found.temperature, found.messages) == (0.5, [{"role": "user"}])


def test_vllm_s_own_fields_pass() -> None:
    assert parsed(top_k=5).top_k == 5


@pytest.mark.parametrize("name", ["metadata", "service_tier", "safety_identifier", "prompt_cache_key"])
def test_fields_that_ask_nothing_of_an_engine_pass(name: str) -> None:
    parsed(**{name: "anything"})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("store", True),
        ("audio", {"voice": "alloy"}),
        ("modalities", ["text", "audio"]),
        ("prediction", {}),
        ("functions", [{"name": "f"}]),
        ("function_call", {"name": "f"}),
        ("web_search_options", {}),
        ("best_of", 2),
        ("logit_bias", {"5": -100}),
    ],
)
def test_a_field_of_openai_s_that_vllm_would_ignore_is_refused(name: str, value: Any) -> None:
    error = refused_with(**{name: value})
    assert (error.param, error.code) == (name, "unsupported_parameter")
    assert error.message == f"'{name}' is not supported by the vllm engine."


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("store", None),
        ("store", False),
        ("audio", None),
        ("modalities", ["text"]),
        ("prediction", None),
        ("functions", []),
        ("function_call", "none"),
        ("web_search_options", None),
        ("best_of", 1),
        ("best_of", None),
    ],
)
def test_a_field_that_vllm_would_ignore_may_ask_for_nothing(name: str, value: Any) -> None:
    parsed(**{name: value})


def test_an_unknown_field_is_refused_with_the_nearest_of_vllm_s() -> None:
    error = refused_with(top_kk=5)
    assert (error.param, error.code) == ("top_kk", "unknown_parameter")
    assert error.message == "Unknown parameter 'top_kk'; did you mean 'top_k'?"


@pytest.mark.parametrize("name", ["maxTokens", "zzz"])
def test_an_unknown_field_is_refused_even_if_null(name: str) -> None:
    assert (refused_with(**{name: None}).param, refused_with(**{name: 1}).param) == (name, name)


def test_a_refusal_doesn_t_depend_on_the_fields_order() -> None:
    names = [f"unknown_{letter}" for letter in "hgfedcba"]
    assert refused_with(**dict.fromkeys(names, 1)).param == "unknown_a"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b"{", None),
        (b"[]", None),
        (b'{"temperature": "hot"}', "temperature"),
        (b'{"messages": [{"role": 1}]}', "messages[0].role"),
        (b'{"top_k": 1.5}', "top_k"),
    ],
)
def test_what_doesn_t_fit_vllm_s_schema_is_refused(body: bytes, param: str | None) -> None:
    assert refused(body).param == param


def vllm_error(code: int, param: str | None = None, message: str = "No.") -> SimpleNamespace:
    return SimpleNamespace(message=message, type="BadRequestError", param=param, code=code)


def test_vllm_writes_the_status_into_code() -> None:
    error = api_error(vllm_error(422, "temperature"), "temperature is bad", request())
    assert (error.status, error.type, error.code) == (422, "invalid_request_error", None)
    assert (error.param, error.message) == ("temperature", "temperature is bad")


@pytest.mark.parametrize("code", [500, 501, 503])
def test_the_server_s_own_faults_blame_no_field(code: int) -> None:
    error = api_error(vllm_error(code, "temperature"), "temperature broke", request())
    assert (error.status, error.type, error.param) == (code, "server_error", None)


@pytest.mark.parametrize(
    ("param", "message", "blamed"),
    [
        ("top_p", "temperature is bad", "top_p"),
        ("input_tokens", "temperature is bad", "temperature"),
        (None, "temperature must be positive", "temperature"),
        (None, "`logprobs` must be positive", "logprobs"),
        (None, "'n' must be 1", "n"),
        (None, '"auto" tool choice requires --enable-auto-tool-choice', "tools"),
        (None, "temperature and tools", "temperature"),
        ("input_tokens", "Something else", None),
        (None, "", None),
    ],
)
@pytest.mark.parametrize(("endpoint", "prompt"), [("chat/completions", "messages"), ("completions", "prompt")])
def test_the_field_to_blame(
    param: str | None, message: str, blamed: str | None, endpoint: Endpoint, prompt: str
) -> None:
    assert api_error(vllm_error(400, param), message, request(endpoint)).param == (blamed or prompt)


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ("This model's maximum context length is 10 tokens.", "context_length_exceeded"),
        ("The prompt is longer than max_model_len 10.", "context_length_exceeded"),
        ("The prompt is bad.", None),
    ],
)
def test_a_context_that_is_too_short_has_its_code(message: str, code: str | None) -> None:
    error = api_error(vllm_error(400, "input_tokens"), message, request())
    assert (error.code, error.param) == (code, "messages")


def error_event(message: str, code: int = 400, param: str | None = None) -> str:
    return f"data: {json.dumps({'error': vars(vllm_error(code, param, message))})}\n\n"


class Stream:
    """A stream of vLLM's, which knows whether it was closed."""

    def __init__(self, *chunks: str) -> None:
        self.chunks = chunks
        self.closed = False

    async def __call__(self) -> AsyncGenerator[str]:
        try:
            for chunk in self.chunks:
                yield chunk
        finally:
            self.closed = True


async def sent(*chunks: str) -> list[str]:
    return [event.decode() async for event in events(Stream(*chunks)(), request())]


async def test_a_whole_stream_passes_as_it_is() -> None:
    whole = ['data: {"choices": "é"}\n\n', 'data: {"choices": []}\n\n', DONE]
    assert await sent(*whole) == whole


async def test_a_stream_that_breaks_has_no_done() -> None:
    first, error = 'data: {"choices": []}\n\n', error_event("gone", 500)
    assert await sent(first, error, DONE) == [first, error]


async def test_text_that_only_looks_like_an_error_breaks_nothing() -> None:
    chunk = 'data: {"choices": [{"delta": {"content": "data: {\\"error\\": [DONE]"}}]}\n\n'
    assert await sent(chunk, DONE) == [chunk, DONE]


async def test_an_error_before_anything_was_sent_is_raised() -> None:
    event = error_event("temperature is bad (parameter=temperature, value=9\n)", param="temperature")
    stream = Stream(event, DONE)
    with pytest.raises(ApiError) as caught:
        await anext(events(stream(), request()))
    assert (caught.value.status, caught.value.param) == (400, "temperature")
    assert caught.value.message == "temperature is bad"
    assert stream.closed


async def test_closing_the_events_closes_vllm_s_stream_at_once() -> None:
    stream = Stream('data: {"choices": []}\n\n', DONE)
    generator = stream()  # held here, so that no garbage collector closes it
    async with aclosing(events(generator, request())) as wire:
        await anext(wire)
        assert not stream.closed
    assert stream.closed


def test_exceptions_become_what_vllm_s_server_would_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    *packages, module = accumulate(
        ["vllm", "entrypoints", "serve", "exception_handling", "error_response"], "{}.{}".format
    )
    for package in packages:
        monkeypatch.setitem(sys.modules, package, SimpleNamespace())
    monkeypatch.setitem(sys.modules, module, SimpleNamespace(create_error_response=as_vllm_does))
    ours = ApiError(400, "No.")
    assert translate(ours, request()) is ours
    theirs = translate(ValueError("top_p is bad", "more"), request())
    assert (theirs.status, theirs.message, theirs.param) == (400, "top_p is bad", "top_p")
    assert translate(ValueError(), request()).message == ""


def as_vllm_does(error: Exception) -> SimpleNamespace:
    return SimpleNamespace(error=vllm_error(400, None, f"{error} (parameter=...)"))


def test_args_pass_through_as_they_are() -> None:
    args = VllmArgs.model_validate({"max_model_len": 1024, "enforce_eager": True, "hf_overrides": {"a": [1]}})
    assert args.model_extra == {"max_model_len": 1024, "enforce_eager": True, "hf_overrides": {"a": [1]}}
    engine = VllmEngine(PoolModel("m", "m"), args)
    assert engine._args == args.model_extra
    assert VllmEngine(PoolModel("m", "m"), VllmArgs())._args == {}


@pytest.mark.parametrize("name", ["model", "served_model_name", "revision"])
def test_engine_args_leave_the_model_to_the_pool(name: str) -> None:
    with pytest.raises(ValidationError, match=f"'{name}' is set by the pool's own keys"):
        VllmArgs.model_validate({name: "x", "max_model_len": 128})
