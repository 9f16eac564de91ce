"""The way through an engine's own OpenAI layer, by small stand-ins with the manners of vLLM's and SGLang's."""

import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from types import SimpleNamespace
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.responses import JSONResponse, StreamingResponse

from deployments.engine import Endpoint, EngineRequest, EngineResponse
from deployments.errors import ApiError
from deployments.model_facts import ModelFacts
from deployments.own_answers import api_error, events, respond
from deployments.own_layer import Handler, OwnLayer, PassedArgs, capabilities, field_names

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


class Asked:
    """A handler that keeps what it was asked."""

    def __init__(self, schema: Any = Schema, **fields: Any) -> None:
        self.found: list[Any] = []
        handlers: dict[Endpoint, Handler] = {"chat/completions": Handler(schema, self._answer, ("suffix",))}
        self.layer = OwnLayer("toy", "served", handlers, **fields)

    async def _answer(self, parsed: Any) -> Any:
        self.found.append(parsed)
        return Answer()

    async def parse(self, body: bytes, adapter: str | None = None) -> Any:
        await self.layer.handle(EngineRequest("chat/completions", body, "id1", adapter))
        return self.found[-1]


class Answer(BaseModel):
    id: str = "1"
    nothing: str | None = None


async def parsed(**fields: Any) -> Schema:
    found = await Asked().parse(json.dumps(fields).encode())
    assert isinstance(found, Schema)
    return found


async def refused(body: bytes) -> ApiError:
    with pytest.raises(ApiError) as caught:
        await Asked().parse(body)
    assert (caught.value.status, caught.value.type) == (400, "invalid_request_error")
    return caught.value


async def refused_with(**fields: Any) -> ApiError:
    return await refused(json.dumps(fields).encode())


async def test_a_request_becomes_an_engines_own_under_the_one_name_it_knows() -> None:
    found = await parsed(model="smollm2@vllm", temperature=0.5, messages=[{"role": "user"}])
    assert (found.model, found.request_id) == ("served", "id1")
    assert (found.temperature, found.messages) == (0.5, [{"role": "user"}])


async def test_an_engines_own_fields_pass() -> None:
    assert (await parsed(top_k=5)).top_k == 5


@pytest.mark.parametrize("name", ["metadata", "service_tier", "safety_identifier", "prompt_cache_key"])
async def test_fields_that_ask_nothing_of_an_engine_pass(name: str) -> None:
    await parsed(**{name: "anything"})


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
async def test_a_field_of_openais_that_the_engine_would_ignore_is_refused(name: str, value: Any) -> None:
    error = await refused_with(**{name: value})
    assert (error.param, error.code) == (name, "unsupported_parameter")
    assert error.message == f"'{name}' is not supported by the toy engine."


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
async def test_a_field_that_the_engine_would_ignore_may_ask_for_nothing(name: str, value: Any) -> None:
    await parsed(**{name: value})


async def test_an_unknown_field_is_refused_with_the_nearest_of_an_engines() -> None:
    error = await refused_with(top_kk=5)
    assert (error.param, error.code) == ("top_kk", "unknown_parameter")
    assert error.message == "Unknown parameter 'top_kk'; did you mean 'top_k'?"


@pytest.mark.parametrize("name", ["maxTokens", "zzz"])
async def test_an_unknown_field_is_refused_even_if_null(name: str) -> None:
    assert ((await refused_with(**{name: None})).param, (await refused_with(**{name: 1})).param) == (name, name)


async def test_a_refusal_doesn_t_depend_on_the_fields_order() -> None:
    names = [f"unknown_{letter}" for letter in "hgfedcba"]
    assert (await refused_with(**dict.fromkeys(names, 1))).param == "unknown_a"


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
async def test_what_doesn_t_fit_an_engines_schema_is_refused(body: bytes, param: str | None) -> None:
    assert (await refused(body)).param == param


def engine_error(code: int, param: str | None = None, message: str = "No.") -> SimpleNamespace:
    return SimpleNamespace(message=message, type="BadRequestError", param=param, code=code)


def test_engines_write_the_status_into_code() -> None:
    error = api_error(vars(engine_error(422, "temperature", "temperature is bad")), request(temperature=1))
    assert (error.status, error.type, error.code) == (422, "invalid_request_error", None)
    assert (error.param, error.message) == ("temperature", "temperature is bad")


def test_no_place_in_an_engines_sources_is_told() -> None:
    message = 'Failed to compile: [06:10:53] /project/cpp/converter.cc:4175: Unsupported type "objekt"\n'
    error = api_error(vars(engine_error(400, None, message)), request())
    assert error.message == 'Failed to compile: Unsupported type "objekt"'


@pytest.mark.parametrize("code", [500, 501, 503])
def test_the_servers_own_faults_blame_no_field(code: int) -> None:
    error = api_error(vars(engine_error(code, "temperature", "temperature broke")), request())
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
        (None, "Grammar error: Invalid type: objekt", "response_format"),
        (None, "Invalid JSON schema", "response_format"),
        ("input_tokens", "Something else", None),
        (None, "", None),
    ],
)
@pytest.mark.parametrize(("endpoint", "prompt"), [("chat/completions", "messages"), ("completions", "prompt")])
def test_the_field_to_blame(
    param: str | None, message: str, blamed: str | None, endpoint: Endpoint, prompt: str
) -> None:
    assert api_error(vars(engine_error(400, param, message)), request(endpoint)).param == (blamed or prompt)


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ("This model's maximum context length is 10 tokens.", "context_length_exceeded"),
        ("The prompt is longer than max_model_len 10.", "context_length_exceeded"),
        ("The prompt is bad.", None),
    ],
)
def test_a_context_that_is_too_short_has_its_code(message: str, code: str | None) -> None:
    error = api_error(vars(engine_error(400, "input_tokens", message)), request())
    assert (error.code, error.param) == (code, "messages")


def error_event(message: str, code: int = 400, param: str | None = None) -> str:
    return f"data: {json.dumps({'error': vars(engine_error(code, param, message))})}\n\n"


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


@pytest.mark.parametrize("last", [{"content": "é"}, {"tool_calls": [{"index": 0}]}])
async def test_the_last_chunk_s_delta_is_empty(last: dict[str, Any]) -> None:
    choice = {"index": 1, "delta": last, "logprobs": {"content": []}, "finish_reason": "stop", "stop_reason": 7}
    chunk = {"id": "1", "choices": [choice]}
    text, end, done = await sent(f"data: {json.dumps(chunk, separators=(',', ':'))}\n\n", DONE)
    assert done == DONE
    [first] = json.loads(text.removeprefix("data: "))["choices"]
    assert first == {**choice, "finish_reason": None}
    whole = json.loads(end.removeprefix("data: "))
    assert whole == {"id": "1", "choices": [{**choice, "delta": {}, "logprobs": None}]}


@pytest.mark.parametrize(
    "event",
    [
        'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}\n\n',
        'data: {"choices":[{"delta":{"content":"\\"finish_reason\\":\\""},"finish_reason":null}]}\n\n',
    ],
)
async def test_other_chunks_stay_as_they_are(event: str) -> None:
    assert await sent(event) == [event]


async def test_a_stream_that_breaks_has_no_done() -> None:
    first, error = 'data: {"choices": []}\n\n', error_event("it was wrong after all", 400)
    assert await sent(first, error, DONE) == [first, error]


async def test_a_failure_of_the_engine_in_mid_stream_is_raised() -> None:
    stream = Stream('data: {"choices": []}\n\n', error_event("EngineCore encountered an issue", 500), DONE)
    generator = events(stream(), request())
    assert await anext(generator) == b'data: {"choices": []}\n\n'
    with pytest.raises(ApiError) as caught:
        await anext(generator)
    assert (caught.value.status, caught.value.message) == (500, "EngineCore encountered an issue")
    assert stream.closed


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


async def test_closing_the_events_closes_an_engines_stream_at_once() -> None:
    stream = Stream('data: {"choices": []}\n\n', DONE)
    generator = stream()  # held here, so that no garbage collector closes it
    async with aclosing(events(generator, request())) as wire:
        await anext(wire)
        assert not stream.closed
    assert stream.closed


# Documents and the rest


class EngineError(BaseModel):
    """vLLM's way to return an error."""

    error: dict[str, Any]


class FlatError(BaseModel):
    """SGLang's."""

    object: Literal["error"] = "error"
    message: str = "temperature is bad"
    type: str = "BadRequest"
    param: str | None = None
    code: int = 400


def error_of(answer: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        respond(answer, request(temperature=1))
    return caught.value


@pytest.mark.parametrize(
    "answer",
    [
        EngineError(error={"message": "temperature is bad", "code": 400, "param": None}),
        FlatError(),
        JSONResponse(FlatError().model_dump(), 400),
        JSONResponse({"error": {"message": "temperature is bad", "code": "bad"}}, 400),
        JSONResponse({"type": "error", "error": {"type": "invalid", "message": "temperature is bad"}}, 400),
    ],
)
def test_errors_that_are_returned(answer: Any) -> None:
    error = error_of(answer)
    assert (error.status, error.message, error.param) == (400, "temperature is bad", "temperature")


def test_an_error_in_no_form_that_is_known() -> None:
    error = error_of(JSONResponse({"detail": "no"}, 503))
    assert (error.status, error.type, error.message) == (503, "server_error", '{"detail":"no"}')


def body_of(answer: EngineResponse) -> bytes:
    assert isinstance(answer.body, bytes)
    return answer.body


def test_documents() -> None:
    assert body_of(respond(Answer(), request())) == b'{"id":"1","nothing":null}'
    assert body_of(respond(Answer(), request("messages"))) == b'{"id":"1"}'
    assert body_of(respond([Answer(), Answer()], request("rerank"))) == b'[{"id":"1","nothing":null}]'.replace(
        b"]", b',{"id":"1","nothing":null}]'
    )
    whole = respond(JSONResponse({"data": []}), request("embeddings"))
    assert (body_of(whole), whole.media_type, whole.status) == (b'{"data":[]}', "application/json", 200)


def test_an_answer_may_hold_a_field_named_error() -> None:
    class Response(BaseModel):
        id: str = "resp_1"
        error: dict[str, str] | None = None

    assert b'"error":null' in body_of(respond(Response(), request("responses")))
    assert b'"error":{"code":"x"}' in body_of(respond(Response(error={"code": "x"}), request("responses")))


async def test_streams_of_starlettes_and_of_objects() -> None:
    class Event(BaseModel):
        type: str = "response.created"

    async def made() -> AsyncGenerator[Any]:
        yield Event()
        yield b"data: bytes\n\n"

    for answer in (made(), StreamingResponse(made())):
        response = respond(answer, request("responses"))
        assert response.media_type == "text/event-stream"
        assert not isinstance(response.body, bytes)
        chunks = [chunk async for chunk in response.body]
        assert chunks == [b'event: response.created\ndata: {"type":"response.created"}\n\n', b"data: bytes\n\n"]


async def test_an_error_event_of_anthropics() -> None:
    event = 'event: error\ndata: {"type": "error", "error": {"type": "x", "message": "no", "code": 422}}\n\n'
    with pytest.raises(ApiError) as caught:
        await anext(events(Stream(event)(), request("messages")))
    assert (caught.value.status, caught.value.message, caught.value.param) == (422, "no", "messages")


# What an engine must not be asked


@pytest.mark.parametrize("name", ["kv_transfer_params", "lora_path", "priority", "request_id", "bootstrap_host"])
async def test_what_reaches_into_the_deployment_is_refused(name: str) -> None:
    error = await refused_with(**{name: "x"})
    assert (error.param, error.code, error.message) == (
        name,
        "unsupported_parameter",
        f"'{name}' is not for clients to set.",
    )


async def test_a_field_that_the_schema_has_and_the_engine_ignores() -> None:
    class WithSuffix(Schema):
        suffix: str | None = None

    for value in (None, ""):  # any field may be null, whatever the table says of it
        await Asked(WithSuffix).parse(json.dumps({"suffix": value}).encode())
    with pytest.raises(ApiError, match="'suffix' is not supported by the toy engine"):
        await Asked(WithSuffix).parse(b'{"suffix": "x"}')


async def test_a_null_is_as_good_as_nothing() -> None:
    class Strict(BaseModel):
        model: str = ""
        n: int = 1

    assert (await Asked(Strict).parse(b'{"n": null, "model": "x"}')).n == 1


async def test_an_adapter_is_named_where_the_engine_looks() -> None:
    class Schema_(BaseModel):
        model: str
        rid: str = ""
        lora_path: str | None = None

    plain = await Asked(Schema_, id_field="rid", adapter_field="lora_path").parse(b'{"model": "x"}')
    assert (plain.model, plain.rid, plain.lora_path) == ("served", "id1", None)
    adapted = await Asked(Schema_, id_field="rid", adapter_field="lora_path").parse(b'{"model": "x"}', "poet")
    assert (adapted.model, adapted.lora_path) == ("poet", "poet")
    named_by_model = await Asked(Schema_).parse(b'{"model": "x"}', "poet")
    assert (named_by_model.model, named_by_model.lora_path) == ("poet", None)


async def test_a_union_of_schemas() -> None:
    class Texts(BaseModel):
        kind: Literal["texts"]
        texts: list[str]

    class Tokens(BaseModel):
        kind: Literal["tokens"]
        tokens: list[int] = Field(alias="ids")

    union = Annotated[Texts | Tokens, Field(discriminator="kind")]
    assert field_names(union) == {"kind", "texts", "ids"}
    assert (await Asked(union).parse(b'{"kind": "tokens", "ids": [1]}')).tokens == [1]
    with pytest.raises(ApiError) as caught:
        await Asked(union).parse(b'{"kind": "texts", "text": []}')
    assert caught.value.message == "Unknown parameter 'text'; did you mean 'texts'?"


def test_capabilities() -> None:
    chat = capabilities(ModelFacts(context_length=99), (), None, auto_tools=False, lora=True)
    assert chat.endpoints == ("chat/completions", "completions", "responses", "messages", "tokenize", "detokenize")
    assert (chat.context_length, chat.tools, chat.parts, chat.lora) == (99, ("forced",), ("text",), True)
    assert chat.json_schema and chat.logprobs and chat.n
    seeing = capabilities(ModelFacts(sees=True), ["messages"], 50, auto_tools=True, lora=False)
    assert (seeing.endpoints, seeing.context_length, seeing.parts) == (("messages",), 50, ("text", "image"))
    assert seeing.tools == ("auto", "forced")
    embeds = capabilities(ModelFacts(generates=False), (), None, auto_tools=True, lora=False)
    assert embeds.endpoints == ("embeddings", "score", "rerank", "tokenize", "detokenize")
    assert not (embeds.tools or embeds.json_schema or embeds.logprobs or embeds.n)


class Passing(PassedArgs):
    pool_keys = frozenset({"model"})
    threads: int | None = None


@pytest.mark.parametrize("key", ["thread", "threads_", "thrxads", "xthreads"])
def test_a_key_of_ours_that_is_misspelt(key: str) -> None:
    with pytest.raises(ValidationError, match=f"Unknown key '{key}'; did you mean 'threads'"):
        Passing.model_validate({key: 1})


@pytest.mark.parametrize("key", ["heads", "threads_xy", "max_threads", "t", "dtype"])
def test_other_keys_are_the_engine_s(key: str) -> None:
    assert Passing.model_validate({key: 1, "threads": 2}).model_extra == {key: 1}
