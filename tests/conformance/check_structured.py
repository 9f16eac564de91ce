"""Answers held to a form: JSON, and JSON of a schema."""

import json
from typing import Any

from tests.conformance.reading import finish_of, same, streamed_finish, streamed_text, text_of
from tests.conformance.subject import Subject
from tests.conformance.suite import check

PROMPT = "Say hello."  # whose plain answer is no JSON
SCHEMA = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}, "color": {"enum": ["red", "green"]}},
    "required": ["ok", "color"],
    "additionalProperties": False,
}


def format_of(schema: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "answer", "strict": True, "schema": schema}}


def fits(text: str) -> None:
    """An object of `SCHEMA`."""
    try:
        document = json.loads(text)
    except ValueError:
        raise AssertionError(f"the answer is no JSON: {text!r}") from None
    assert isinstance(document, dict) and document.keys() == {"ok", "color"}, f"not of the schema: {text!r}"
    assert isinstance(document["ok"], bool) and document["color"] in ("red", "green"), f"not of the schema: {text!r}"


@check("json_schema is enforced", needs=["json_schema"])
async def schema(subject: Subject) -> None:
    """An answer with a json_schema is JSON of that schema, whatever the prompt."""
    document = await subject.chat(PROMPT, response_format=format_of(SCHEMA), max_tokens=64)
    fits(text_of(document))
    same("the finish reason", finish_of(document), "stop")


@check("json_schema in a stream", needs=["json_schema"])
async def streamed(subject: Subject) -> None:
    """A stream with a json_schema has the JSON of the whole answer."""
    chunks = await subject.chat_stream(PROMPT, response_format=format_of(SCHEMA), max_tokens=64)
    fits(streamed_text(chunks))
    whole = await subject.chat(PROMPT, response_format=format_of(SCHEMA), max_tokens=64)
    same("the text", streamed_text(chunks), text_of(whole))
    same("the finish reason", streamed_finish(chunks), "stop")


@check("json_schema with sampling", needs=["json_schema"])
async def sampled(subject: Subject) -> None:
    """A schema is enforced while tokens are chosen: it holds at temperature 1.5 too."""
    schema = {"type": "string", "enum": ["left", "right"]}
    for _ in range(3):
        document = await subject.chat(PROMPT, response_format=format_of(schema), max_tokens=24, temperature=1.5)
        assert json.loads(text_of(document)) in ("left", "right"), f"not of the schema: {text_of(document)!r}"


@check("json_schema cut short is length", needs=["json_schema"])
async def cut(subject: Subject) -> None:
    """JSON that `max_tokens` cuts off has the finish reason "length"."""
    document = await subject.chat(PROMPT, response_format=format_of(SCHEMA), max_tokens=3)
    same("the finish reason", finish_of(document), "length")


@check("json_object is JSON", needs=["json_schema"])
async def json_object(subject: Subject) -> None:
    """An answer of the format json_object is an object, whatever the prompt, unless it is cut short."""
    document = await subject.chat(
        "Describe a person as JSON with one key.", response_format={"type": "json_object"}, max_tokens=48
    )
    text = text_of(document)
    assert text.lstrip().startswith("{"), f"not an object: {text!r}"
    if finish_of(document) == "stop":
        assert isinstance(json.loads(text), dict), f"not an object: {text!r}"


@check("a schema that is none is a 400", needs=["json_schema"])
async def bad_schema(subject: Subject) -> None:
    """A json_schema that can't be enforced is a 400 that names response_format, whole and streamed."""
    for stream in (False, True):
        response = await subject.post(
            "/v1/chat/completions",
            {
                "messages": [{"role": "user", "content": PROMPT}],
                "response_format": format_of({"type": "objekt"}),
                "max_tokens": 8,
                "stream": stream,
            },
        )
        same("the status", response.status_code, 400)
        assert str(response.json()["error"]["param"]).startswith("response_format"), response.text


@check("json_schema without a schema is a 400", needs=["json_schema"])
async def no_schema(subject: Subject) -> None:
    """The format json_schema without a schema is a 400 that names response_format."""
    body = {"messages": [{"role": "user", "content": PROMPT}], "response_format": {"type": "json_schema"}}
    response = await subject.post("/v1/chat/completions", {**body, "max_tokens": 8})
    same("the status", response.status_code, 400)
    assert str(response.json()["error"]["param"]).startswith("response_format"), response.text
