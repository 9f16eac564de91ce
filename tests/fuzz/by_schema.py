"""Inputs that schemathesis makes of the ingress's own OpenAPI document: such as fit it, and such as don't."""

import json
from typing import Any
from urllib.parse import quote, urlencode

import schemathesis
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from schemathesis import GenerationMode
from schemathesis.core import NOT_SET
from starlette.types import ASGIApp

from tests.fuzz.client import ask
from tests.fuzz.documents import MODELS
from tests.fuzz.headers import usual
from tests.fuzz.inputs import Input


async def document_of(app: ASGIApp) -> dict[str, Any]:
    """What the ingress says of its API."""
    answer = await ask(app, Input("GET", "/openapi.json", usual))
    document: dict[str, Any] = json.loads(answer.body)
    return document


def by_schema(document: dict[str, Any]) -> SearchStrategy[Input]:
    """Only the inputs are schemathesis': they are sent, and answers judged, as all others are."""
    schema: Any = schemathesis.openapi.from_dict(_with_models(document))
    cases: list[SearchStrategy[Any]] = [schema.as_strategy(mode) for mode in GenerationMode]
    return st.one_of(cases).map(_input)


def _with_models(node: Any) -> Any:
    """The document with the names of models, which it doesn't know: few inputs would come as far as a pool."""
    if isinstance(node, list):
        return [_with_models(item) for item in node]
    if not isinstance(node, dict):
        return node
    named = {"model": {"type": "string", "enum": MODELS}} if isinstance(node.get("model"), dict) else {}
    return {**{key: _with_models(value) for key, value in node.items()}, **named}


def _input(case: Any) -> Input:
    path = case.path
    for name, value in case.path_parameters.items():
        path = path.replace(f"{{{name}}}", quote(_utf8(str(value)), safe=""))
    query = (
        "?" + urlencode({_utf8(str(key)): _utf8(str(value)) for key, value in case.query.items()}) if case.query else ""
    )
    sent = [(_utf8(name).lower(), _utf8(str(value))) for name, value in case.headers.items()]
    headers = tuple((name, value.translate(None, b"\r\n\0")) for name, value in sent if name.isascii())
    return Input(case.method, path + query, (*usual, *headers), (_body(case.body),))


def _body(body: Any) -> bytes:
    if body is NOT_SET:
        return b""
    return body if isinstance(body, bytes) else _utf8(json.dumps(body, ensure_ascii=False))


def _utf8(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
