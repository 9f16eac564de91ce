"""The stand-in for TGI is held to what TGI publishes, as the recorded answers of real servers are."""

import json
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from tests.fakes.tgi import OPENAPI, Server, validator

RESPONSES = Path(__file__).parents[1] / "data" / "tgi" / "responses"
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4, "temperature": 0}
COMPLETION: dict[str, Any] = {"prompt": ["Hello", "again"], "max_tokens": 4}
TOOL = {"type": "function", "function": {"name": "weather", "arguments": {"type": "object", "properties": {}}}}


@pytest.fixture
def client() -> TestClient:
    return TestClient(Server(interval_s=0).app())


def events(text: str) -> list[Any]:
    *found, done = [line.removeprefix("data:").strip() for line in text.splitlines() if line.startswith("data:")]
    assert done == "[DONE]"
    return [json.loads(event) for event in found]


def fits(document: Any, schema: str) -> None:
    validator(schema).validate(document)


def test_the_paths_are_published(client: TestClient) -> None:
    served = {route.path for route in client.app.routes}  # type: ignore[attr-defined]
    assert served <= OPENAPI["paths"].keys()
    fits(client.get("/info").json(), "Info")
    assert client.get("/health").status_code == 200


@pytest.mark.parametrize(
    "more", [{}, {"logprobs": True, "top_logprobs": 2}, {"tools": [TOOL], "tool_choice": "required"}], ids=str
)
def test_chats(client: TestClient, more: dict[str, Any]) -> None:
    document = client.post("/v1/chat/completions", json=CHAT | more).json()
    assert document["id"] == ""
    fits(document, "ChatCompletion")
    options = {"stream": True, "stream_options": {"include_usage": True}}
    for chunk in events(client.post("/v1/chat/completions", json=CHAT | more | options).text):
        fits(chunk, "ChatCompletionChunk")


def test_completions(client: TestClient) -> None:
    document = client.post("/v1/completions", json=COMPLETION).json()
    fits(document, "CompletionFinal")
    assert [choice["index"] for choice in document["choices"]] == [1, 0]
    for chunk in events(client.post("/v1/completions", json=COMPLETION | {"stream": True}).text):
        fits(chunk, "Chunk")


@pytest.mark.parametrize("parameters", [{}, {"details": True, "top_n_tokens": 2, "max_new_tokens": 3}], ids=str)
def test_native_routes(client: TestClient, parameters: dict[str, Any]) -> None:
    body = {"inputs": "Hello", "parameters": parameters}
    whole = client.post("/generate", json=body).json()
    fits(whole, "GenerateResponse")
    text = client.post("/generate_stream", json=body).text
    assert "[DONE]" not in text
    found = [json.loads(line.removeprefix("data:")) for line in text.splitlines() if line.startswith("data:")]
    for event in found:
        fits(event, "StreamResponse")
    assert found[-1]["generated_text"] == whole["generated_text"]
    assert [event["token"] for event in found] == whole["details"]["tokens"]
    tokens = client.post("/tokenize", json={"inputs": "Hello there"}).json()
    fits(tokens, "TokenizeResponse")
    assert [token["text"] for token in tokens] == ["Hello", " there"]


@pytest.mark.parametrize("parameters", [{"temperature": 0}, {"top_p": 1.0}, {"top_n_tokens": 6}], ids=str)
def test_refusals_of_native_routes(client: TestClient, parameters: dict[str, Any]) -> None:
    body = {"inputs": "Hello", "parameters": parameters}
    refused = client.post("/generate", json=body)
    assert refused.status_code == 422
    streamed = client.post("/generate_stream", json=body)
    if "temperature" in parameters:  # its published bounds are held first, in plain text
        assert streamed.status_code == 422
        return
    fits(refused.json(), "ErrorResponse")
    assert streamed.status_code == 200
    assert json.loads(streamed.text.removeprefix("data:")) == refused.json()


@pytest.mark.parametrize(
    ("body", "status", "kind"),
    [
        (CHAT | {"top_p": 1.0}, 422, "validation"),
        (CHAT | {"max_tokens": 10**6}, 422, "validation"),
        (CHAT | {"stop": ["a"] * 5}, 422, "validation"),
        (CHAT | {"top_logprobs": 6}, 422, "validation"),
    ],
    ids=str,
)
def test_refusals(client: TestClient, body: dict[str, Any], status: int, kind: str) -> None:
    answer = client.post("/v1/chat/completions", json=body)
    assert (answer.status_code, answer.json()["error_type"]) == (status, kind)
    fits(answer.json(), "ErrorResponse")
    streamed = client.post("/v1/chat/completions", json=body | {"stream": True})
    assert (streamed.status_code, events(streamed.text)) == (200, [answer.json()])


@pytest.mark.parametrize("body", [b"{", b"[]", b'{"messages": "x"}', b'{"messages": [], "stop": "x"}'])
def test_what_is_no_request_is_refused_in_plain_text(client: TestClient, body: bytes) -> None:
    answer = client.post("/v1/chat/completions", content=body)
    assert answer.status_code in (400, 422)
    assert answer.headers["content-type"].startswith("text/plain")


def test_a_wrong_key_is_a_bare_401() -> None:
    client = TestClient(Server(api_key="right").app())
    answer = client.post("/v1/chat/completions", json=CHAT)
    assert (answer.status_code, answer.content) == (401, b"")
    assert client.get("/health").status_code == 200


@pytest.mark.parametrize("path", sorted(RESPONSES.rglob("*.json")), ids=lambda path: path.stem)
def test_what_real_servers_answered_fits_too(path: Path) -> None:
    """So the schemas that the stand-in is held to are those that the servers keep."""
    recorded = json.loads(path.read_text(encoding="utf-8"))
    for document in recorded if isinstance(recorded, list) else [recorded]:
        if "generated_text" in document:
            assert document["details"].pop("top_tokens") is None  # published as a list; servers write null
            fits(document, "GenerateResponse")
        elif document["object"] == "text_completion":
            fits(document, "Chunk" if isinstance(recorded, list) else "CompletionFinal")
        else:
            fits(document, "ChatCompletionChunk" if isinstance(recorded, list) else "ChatCompletion")
