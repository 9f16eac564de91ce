import json
from typing import Any

import pytest

from deployments.engine import Endpoint, EngineResponse
from deployments.errors import ApiError
from deployments.upstream_errors import EXCERPT, error_answer, excerpt

KEY = "sk-very-secret-0123456789"


def answered(
    status: int, body: bytes, endpoint: Endpoint = "chat/completions", headers: dict[str, str] | None = None
) -> EngineResponse | ApiError:
    try:
        return error_answer(status, headers or {}, body, endpoint, KEY)
    except ApiError as error:
        return error


def error_of(status: int, document: Any, **more: Any) -> ApiError:
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    answer = answered(status, body, **more)
    assert isinstance(answer, ApiError)
    return answer


OPENAI = b'{ "error" : {"message":"No.","type":"t","param":"n","code":"c","more":1.0e5} }'
ANTHROPIC = b'{"type":"error","error":{"type":"overloaded_error","message":"Full."}}'


@pytest.mark.parametrize("status", [400, 404, 422, 500, 502, 529])
def test_openai_s_envelope_passes_as_it_is(status: int) -> None:
    assert answered(status, OPENAI) == EngineResponse(OPENAI, status)


def test_each_api_has_its_own_envelope() -> None:
    assert answered(529, ANTHROPIC, "messages") == EngineResponse(ANTHROPIC, 529)
    error = error_of(429, ANTHROPIC)
    assert (error.status, error.message, error.type) == (429, "Full.", "rate_limit_error")
    error = error_of(400, OPENAI, endpoint="messages")
    assert (error.status, error.message, error.param, error.code) == (400, "No.", "n", "c")


@pytest.mark.parametrize(
    ("document", "message", "param", "code"),
    [
        (
            {"object": "error", "message": "Bad.", "type": "BadRequestError", "param": "n", "code": 400},
            "Bad.",
            "n",
            None,
        ),
        ({"message": "Bad.", "type": "invalid", "code": 400}, "Bad.", None, None),
        ({"detail": "Not Found"}, "The remote server says: Not Found", None, None),
        (
            {"detail": [{"loc": ["body", "x", 0, "y"], "msg": "Required"}]},
            "x[0].y: Required",
            "x[0].y",
            "invalid_value",
        ),
        ({"detail": [{"loc": ["body"], "msg": "No"}, {"loc": 5, "msg": "Odd"}]}, "No; Odd", None, "invalid_value"),
        ({"detail": [1, 2]}, "", None, "invalid_value"),
        ({"error": "Too long.", "error_type": "validation"}, "Too long.", None, "validation"),
        ({"error": {"message": 5}}, "The remote server answered with status 400.", None, None),
        ({}, "The remote server answered with status 400.", None, None),
        ({"message": {"x": 1}, "code": ["c"]}, "The remote server answered with status 400.", None, None),
    ],
)
def test_other_documents_are_put_into_the_envelope(
    document: Any, message: str, param: str | None, code: str | None
) -> None:
    error = error_of(400, document)
    assert (error.status, error.param, error.code) == (400, param, code)
    assert error.message == (message or "The remote server answered with status 400.")
    assert error.type == "invalid_request_error"


@pytest.mark.parametrize("body", [b"", b"<h1>Bad</h1>", b"[1]", b'"x"', b"\xff\xfe", b"[" * 100_000, b"{"])
@pytest.mark.parametrize(
    ("status", "expected"), [(400, 502), (404, 502), (500, 502), (413, 413), (503, 503), (504, 504)]
)
def test_what_is_no_document_is_a_bad_gateway(body: bytes, status: int, expected: int) -> None:
    error = error_of(status, body)
    assert (error.status, error.code) == (expected, "upstream_error")
    assert f"status {status}" in error.message
    assert len(error.message) < EXCERPT + 100


@pytest.mark.parametrize("status", [401, 403])
@pytest.mark.parametrize(
    "body", [OPENAI, b"", json.dumps({"error": {"message": f"Incorrect key: {KEY[:9]}"}}).encode()]
)
def test_a_refused_key_is_the_pool_s_affair(status: int, body: bytes) -> None:
    error = error_of(status, body)
    assert (error.status, error.code) == (502, "upstream_error")
    assert error.message == f"The remote server refuses this pool's API key (status {status})."


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_a_redirect_is_not_followed(status: int) -> None:
    error = error_of(status, b"<a href='http://elsewhere/'>", headers={"location": "http://elsewhere/"})
    assert error.status == 502
    assert "elsewhere" not in error.message


def test_the_key_is_in_no_error() -> None:
    answer = answered(400, json.dumps({"error": {"message": f"You sent {KEY}."}}).encode())
    assert isinstance(answer, EngineResponse)
    assert answer.body == b'{"error": {"message": "You sent ***."}}'
    assert KEY not in error_of(500, f"Traceback: Bearer {KEY}".encode()).message
    assert KEY not in error_of(500, {"detail": KEY}).message


@pytest.mark.parametrize(
    ("status", "headers", "waits"),
    [
        (429, {"retry-after": "7"}, {"retry-after": "7"}),
        (503, {"retry-after": "Wed, 21 Oct 2026 07:28:00 GMT"}, {"retry-after": "Wed, 21 Oct 2026 07:28:00 GMT"}),
        (503, {}, {"retry-after": "5"}),
        (429, {"retry-after": "x" * 500}, {"retry-after": "5"}),
        (429, {"retry-after": "<script>"}, {"retry-after": "5"}),
        (400, {"retry-after": "7"}, {}),
    ],
)
@pytest.mark.parametrize("body", [OPENAI, b"busy", b'{"detail":"busy"}'])
def test_when_to_come_back(status: int, headers: dict[str, str], waits: dict[str, str], body: bytes) -> None:
    answer = answered(status, body, headers=headers)
    assert dict(answer.headers) == waits


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (
            b"<html><head><style>a{b}</style><script>x<y</script><title>502 Bad</title></head>\n<p>nginx",
            "502 Bad nginx",
        ),
        (b"see http://10.0.0.5:8000/v1?a=b and HTTPS://x.y for more", "see and for more"),
        (b"a\x00b\x1b[31m\r\n\tc\xff", "a b [31m c\ufffd"),
        ("日本 🎉".encode(), "日本 🎉"),
        (b"x" * EXCERPT, "x" * EXCERPT),
        (b"x" * (EXCERPT + 1), "x" * EXCERPT + "…"),
        (b"", ""),
    ],
)
def test_excerpts(body: bytes, text: str) -> None:
    assert excerpt(body) == text
