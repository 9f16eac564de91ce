"""What no request may ask for, whatever the engine and wherever in the request it is said."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict

from deployments import reach
from deployments.capabilities import refuse_beyond
from deployments.engine import ENDPOINTS, Capabilities, Endpoint, EngineRequest
from deployments.errors import ApiError
from deployments.model_name import fields_of
from deployments.own_layer import Handler, OwnLayer
from deployments.reach import RESERVED, WATCHED, refuse_foreign, refuse_reserved

EVERYTHING = Capabilities(
    endpoints=ENDPOINTS,
    tools=("auto", "forced"),
    json_schema=True,
    logprobs=True,
    n=True,
    parts=("text", "image", "audio", "video", "file"),
)
FOREIGN = [
    "http://169.254.169.254/latest",
    "https://example.com/a.png",
    "file:///etc/passwd",
    "/etc/passwd",
    "../../etc/passwd",
    "ftp://a/b",
    "//a/b",
    "DATA:image/png;base64,AA==",
    " data:image/png;base64,AA==",
    "",
]
INLINE = "data:image/png;base64,AA=="
IMAGE = {"type": "image_url", "image_url": {"url": "URL"}}
# Where engines look for content, by endpoint, and what is named there.
PLACES: list[tuple[Endpoint, dict[str, Any], str]] = [
    ("chat/completions", {"messages": [{"content": [IMAGE]}]}, "messages[0].content[0].image_url.url"),
    ("chat/completions", {"messages": [{"content": [{"image_url": "URL"}]}]}, "messages[0].content[0].image_url"),
    ("chat/completions", {"messages": [{"content": [{"video_url": "URL"}]}]}, "messages[0].content[0].video_url"),
    (
        "chat/completions",
        {"messages": [{"content": [{"type": "audio_url", "audio_url": {"url": "URL"}}]}]},
        "messages[0].content[0].audio_url.url",
    ),
    (
        "chat/completions",
        {"messages": [{"content": [{"type": "image", "image": "URL"}]}]},
        "messages[0].content[0].image",
    ),
    (
        "responses",
        {"input": [{"content": [{"type": "input_file", "file_url": "URL"}]}]},
        "input[0].content[0].file_url",
    ),
    (
        "responses",
        {"previous_input_messages": [{"content": [IMAGE]}]},
        "previous_input_messages[0].content[0].image_url.url",
    ),
    (
        "messages",
        {"messages": [{"content": [{"type": "image", "source": {"type": "url", "url": "URL"}}]}]},
        "messages[0].content[0].source.url",
    ),
    ("messages", {"system": [{"type": "image", "source": {"url": "URL"}}]}, "system[0].source.url"),
    ("tokenize", {"messages": [{"content": [IMAGE]}]}, "messages[0].content[0].image_url.url"),
    ("embeddings", {"input": [{"text": "a", "image": "URL"}]}, "input[0].image"),
    ("embeddings", {"input": [{"video": "URL"}]}, "input[0].video"),
    ("embeddings", {"messages": [{"content": [IMAGE]}]}, "messages[0].content[0].image_url.url"),
    ("score", {"data_1": {"content": [IMAGE]}, "data_2": "a"}, "data_1.content[0].image_url.url"),
    ("score", {"data_1": "a", "data_2": [{"content": [IMAGE]}]}, "data_2[0].content[0].image_url.url"),
    ("score", {"text_1": {"content": [IMAGE]}}, "text_1.content[0].image_url.url"),
    ("score", {"text_2": {"content": [IMAGE]}}, "text_2.content[0].image_url.url"),
    ("score", {"queries": {"content": [IMAGE]}}, "queries.content[0].image_url.url"),
    ("score", {"items": [{"content": [IMAGE]}]}, "items[0].content[0].image_url.url"),
    ("rerank", {"query": [IMAGE], "documents": ["a"]}, "query[0].image_url.url"),
    ("rerank", {"query": "a", "documents": [[IMAGE]]}, "documents[0][0].image_url.url"),
    ("rerank", {"query": "a", "documents": {"content": [IMAGE]}}, "documents.content[0].image_url.url"),
]
places = pytest.mark.parametrize(("endpoint", "fields", "where"), PLACES, ids=[where for *_, where in PLACES])


def naming(fields: dict[str, Any], url: str) -> bytes:
    return json.dumps(fields).replace('"URL"', json.dumps(url)).encode()


def ask(endpoint: Endpoint, body: bytes) -> None:
    refuse_beyond(EVERYTHING, EngineRequest(endpoint, body, "id"), "toy")


def refused(endpoint: Endpoint, body: bytes) -> ApiError:
    with pytest.raises(ApiError) as caught:
        ask(endpoint, body)
    assert caught.value.status == 400
    return caught.value


# Content


@places
@pytest.mark.parametrize("url", FOREIGN)
def test_nothing_is_fetched_or_opened(endpoint: Endpoint, fields: dict[str, Any], where: str, url: str) -> None:
    error = refused(endpoint, naming(fields, url))
    assert (error.param, error.code) == (where, "unsupported_url")
    assert url not in error.message or not url


@places
def test_content_may_come_inside_the_request(endpoint: Endpoint, fields: dict[str, Any], where: str) -> None:
    ask(endpoint, naming(fields, INLINE))


@places
def test_keys_may_be_spelt_with_escapes(endpoint: Endpoint, fields: dict[str, Any], where: str) -> None:
    spelt = re.sub(
        rb'"(\w+)":', lambda key: b'"%s":' % b"".join(b"\\u%04x" % byte for byte in key[1]), naming(fields, "/etc")
    )
    assert refused(endpoint, spelt).param == where


@pytest.mark.parametrize("key", ["image_embeds", "audio_embeds", "prompt_embeds", "image_pil", "uuid", "content_hash"])
def test_parts_that_are_tensors_or_another_client_s(key: str) -> None:
    part = {"type": "image_url", "image_url": {"url": INLINE}, key: "gASVAAAA"}
    error = refused("chat/completions", naming({"messages": [{"role": "user", "content": [part]}]}, ""))
    assert (error.param, error.code) == (f"messages[0].content[0].{key}", "unsupported_parameter")


def test_a_part_that_is_a_tensor_by_its_type() -> None:
    error = refused("chat/completions", b'{"messages": [{"content": [{"type": "prompt_embeds", "data": "gASV"}]}]}')
    assert error.param == "messages[0].content[0].type"
    assert error.message == "'prompt_embeds' is not for clients to set."


@pytest.mark.parametrize(
    ("endpoint", "fields"),
    [
        ("messages", {"messages": [{"content": [{"type": "tool_use", "input": {"url": "http://a", "uuid": "1"}}]}]}),
        ("chat/completions", {"messages": [{"tool_calls": [{"function": {"arguments": {"url": "http://a"}}}]}]}),
        ("responses", {"input": [{"content": [{"type": "output_text", "annotations": [{"url": "http://a"}]}]}]}),
        ("chat/completions", {"documents": [{"title": "a", "url": "http://a"}], "messages": []}),
        ("chat/completions", {"messages": [{"content": "see http://a or file:///etc/passwd", "type": "x"}]}),
        (
            "chat/completions",
            {"tools": [{"function": {"parameters": {"properties": {"url": {"default": "http://a"}}}}}]},
        ),
        ("chat/completions", {"user": "http://a", "safety_identifier": "/etc/passwd", "metadata": {"url": "http://a"}}),
        ("rerank", {"query": "http://a", "documents": ["file:///etc/passwd"]}),
    ],
)
def test_a_url_that_is_but_a_text(endpoint: Endpoint, fields: dict[str, Any]) -> None:
    ask(endpoint, json.dumps(fields).encode())


def test_a_tool_s_server_is_not_asked() -> None:
    body = json.dumps({"input": "a", "tools": [{"type": "mcp", "server_label": "a", "server_url": "http://10.0.0.1"}]})
    error = refused("responses", body.encode())
    assert (error.param, error.code) == ("tools[0].server_url", "unsupported_url")


# Schemas


@pytest.mark.parametrize("key", ["$ref", "$dynamicRef", "$recursiveRef"])
@pytest.mark.parametrize("target", ["http://a/b.json", "file:///etc/passwd", "other.json", "/etc/passwd", "//a#/b", ""])
@pytest.mark.parametrize(
    ("fields", "where"),
    [
        ({"response_format": {"json_schema": {"schema": "IT"}}}, "response_format.json_schema.schema"),
        ({"tools": [{"function": {"parameters": {"properties": {"a": "IT"}}}}]}, None),
        ({"functions": [{"parameters": "IT"}]}, None),
        ({"text": {"format": {"type": "json_schema", "schema": {"items": ["IT"]}}}}, None),
        ({"structured_outputs": {"json": "IT"}}, "structured_outputs.json"),
        ({"output_config": {"format": {"schema": "IT"}}}, None),
    ],
)
def test_a_schema_refers_to_itself_alone(key: str, target: str, fields: dict[str, Any], where: str | None) -> None:
    body = json.dumps(fields).replace('"IT"', json.dumps({key: target}))
    error = refused("chat/completions", body.encode())
    assert error.code == "unsupported_url" and error.param is not None and error.param.endswith(f".{key}")
    if where is not None:
        assert error.param == f"{where}.{key}"
    ask("chat/completions", body.replace(json.dumps(target), '"#/$defs/a"').encode())


@pytest.mark.parametrize("fields", [{"json_schema": "IT"}, {"structured_outputs": {"json": "IT"}}])
def test_a_schema_in_a_string(fields: dict[str, Any]) -> None:
    for schema, wrong in (({"$ref": "http://a"}, True), ({"$ref": "#"}, False), ({"$schema": "http://a"}, False)):
        body = json.dumps(fields).replace('"IT"', json.dumps(json.dumps(schema))).encode()
        if wrong:
            assert refused("completions", body).code == "unsupported_url"
        else:
            ask("completions", body)
    ask("completions", json.dumps(fields).replace('"IT"', '"{ no $ref JSON"').encode())


def test_a_property_may_be_called_ref() -> None:
    refuse_foreign({"response_format": {"schema": {"properties": {"$ref": {"type": "string"}}}}}, "chat/completions")


# Fields


class AnySchema(BaseModel):
    model_config = ConfigDict(extra="allow")


class Layer(OwnLayer):
    """An engine's own layer that has every field."""

    def __init__(self) -> None:
        async def ask(request: Any) -> Any:
            raise AssertionError("the engine was asked")

        handler = Handler(AnySchema, ask)
        object.__setattr__(handler, "fields", WATCHED | {"messages"})
        super().__init__("toy", "served", {"chat/completions": handler})


@pytest.mark.parametrize("name", sorted(RESERVED))
async def test_a_reserved_field_never_reaches_an_engine(name: str) -> None:
    values: list[Any] = ["x", {"a": 1}, 0, False, []]
    for value in values:
        with pytest.raises(ApiError) as caught:
            await Layer().handle(EngineRequest("chat/completions", json.dumps({name: value}).encode(), "id"))
        assert (caught.value.status, caught.value.param) == (400, name)
        assert caught.value.code == "unsupported_parameter"
    refuse_reserved(name, None)


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("vllm_xargs", "kv_transfer_params"),
        ("vllm_xargs", "session_id"),
        ("chat_template_kwargs", "chat_template"),
        ("chat_template_kwargs", "tokenize"),
        ("chat_template_kwargs", "processor_kwargs"),
    ],
)
async def test_a_reserved_field_inside_another(name: str, key: str) -> None:
    with pytest.raises(ApiError) as caught:
        await Layer().handle(EngineRequest("chat/completions", json.dumps({name: {key: "x"}}).encode(), "id"))
    assert (caught.value.status, caught.value.param) == (400, f"{name}.{key}")
    refuse_reserved(name, {key: None, "enable_thinking": False})
    refuse_reserved(name, "of a wrong type")


def test_no_reserved_field_is_openai_s_own() -> None:
    from deployments.openai_layer.schema import OPENAI_FIELDS

    assert not OPENAI_FIELDS & RESERVED


def test_what_is_spelt_twice_or_with_escapes_is_seen_in_bytes() -> None:
    body = b'{"rid": null, "a": {"rid": 2}, "r\\u0069d": [1], "rid": null}'
    assert list(fields_of(body, WATCHED)) == [("rid", None), ("rid", [1]), ("rid", None)]


def test_the_fields_that_are_known_to_be_dangerous() -> None:
    """SGLang unpickles the first, connects to the second, and searches by the third; vLLM renders the last."""
    assert {"custom_logit_processor", "bootstrap_host", "stop_regex", "chat_template"} <= RESERVED
    assert Path(reach.__file__).read_text().count("pickle") == 1  # a word of a comment
