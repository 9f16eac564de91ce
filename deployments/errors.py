"""OpenAI's error envelope, and the exceptions that become one."""

import json
from collections.abc import Iterable, Mapping
from difflib import get_close_matches

from pydantic import ValidationError
from pydantic_core import ErrorDetails

# What pydantic adds to a location for the branches of a union of plain types.
_TYPE_NAMES = frozenset({"str", "int", "float", "bool", "bytes", "list", "dict", "none", "nullable", "literal"})

# Source: Anthropic's API reference, errors.
_ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}


class ApiError(Exception):
    """An error that a client sees, in OpenAI's envelope.

    `param` is the request field at fault, in dotted form with list indices (`messages[0].content`).
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        type: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.type = type
        self.param = param
        self.code = code
        self.headers = dict(headers or {})

    def body(self) -> bytes:
        return envelope(self.message, self.type, self.param, self.code)

    def anthropic_body(self) -> bytes:
        """The error document of Anthropic's API, with the field and code of OpenAI's beside it."""
        kind = _ANTHROPIC_TYPES.get(self.status, "api_error" if self.status >= 500 else "invalid_request_error")
        error = {"type": kind, "message": self.message, "param": self.param, "code": self.code}
        return json.dumps({"type": "error", "error": error}).encode()


def envelope(message: str, type: str, param: str | None = None, code: str | None = None) -> bytes:
    """OpenAI's error document, as JSON bytes."""
    return json.dumps({"error": {"message": message, "type": type, "param": param, "code": code}}).encode()


def error_event(message: str, code: str) -> bytes:
    """The server-sent event that ends a stream which broke after its first byte."""
    return b"data: " + envelope(message, "server_error", code=code) + b"\n\n"


def anthropic_error_event(message: str, code: str) -> bytes:
    """As `error_event`, for a stream of Anthropic's Messages API, whose events have names."""
    body = ApiError(500, message, type="server_error", code=code).anthropic_body()
    return b"event: error\ndata: " + body + b"\n\n"


def unavailable(message: str, code: str, retry_after_s: int) -> ApiError:
    """A 503 that says when to come back."""
    return ApiError(503, message, type="server_error", code=code, headers={"retry-after": str(retry_after_s)})


def unsupported(param: str, engine: str) -> ApiError:
    """The 400 for a field that OpenAI's API has and `engine` can't honour."""
    message = f"'{param}' is not supported by the {engine} engine."
    return ApiError(400, message, param=param, code="unsupported_parameter")


def internal_error() -> ApiError:
    """A 500 that tells a client what to quote, and nothing of what went wrong inside."""
    message = "Internal error. The server's log has it under the id in this answer's x-request-id header."
    return ApiError(500, message, type="server_error", code="internal_error")


def unknown_keys(keys: Iterable[str], valid: Iterable[str], noun: str = "parameter") -> list[str]:
    """A sentence for each key that isn't valid, naming the nearest valid one where one is near, else all of them."""
    names = sorted(valid)
    sentences = []
    for key in keys:
        if key not in names:
            near = get_close_matches(key, names, n=1, cutoff=0.6)
            hint = f"did you mean '{near[0]}'?" if near else f"valid: {', '.join(names)}." if names else ""
            sentences.append(f"Unknown {noun} '{key}'; {hint}" if hint else f"Unknown {noun} '{key}'.")
    return sentences


def dotted(location: Iterable[str | int]) -> str:
    """A pydantic error location as a path: ('messages', 0, 'role') is messages[0].role."""
    path = ""
    for part in location:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else part
    return path


def from_validation_error(error: ValidationError, fields: Iterable[str]) -> ApiError:
    """The 400 for a request that doesn't fit its schema: one error, exactly, with the field in `param`.

    `fields` are the request's top-level field names, to name the nearest one to a misspelt field.
    """
    details = max(error.errors(include_url=False, include_context=False, include_input=False), key=_depth)
    location = _location(details)
    param = dotted(location) or None
    match details["type"]:
        case "json_invalid":
            return ApiError(400, f"The request body is not JSON: {details['msg'].removeprefix('Invalid JSON: ')}.")
        case "extra_forbidden":
            message = unknown_keys([str(location[-1])], fields if len(location) == 1 else ())[0]
            return ApiError(400, message, param=param, code="unknown_parameter")
        case "missing":
            return ApiError(400, f"Missing required parameter: '{param}'.", param=param, code="missing_parameter")
    where = f" for '{param}'" if param else ""
    return ApiError(400, f"Invalid value{where}: {sentence(details['msg'])}", param=param, code="invalid_value")


def client_location(location: Iterable[str | int]) -> list[str | int]:
    """A pydantic error location without the union branches that pydantic adds and a client has never heard of."""
    return [part for part in location if isinstance(part, int) or (_is_field(part) and part not in _TYPE_NAMES)]


def sentence(message: str) -> str:
    """A pydantic message as the end of a sentence of ours."""
    text = message.removeprefix("Value error, ").removeprefix("Assertion failed, ")
    return text if text.endswith((".", "?")) else text + "."


def _is_field(part: str) -> bool:
    return part.isidentifier() and part == part.lower()


def _depth(details: ErrorDetails) -> int:
    """How far into the document an error lies. Of a union's errors, the deepest is of the branch that was meant."""
    return len(_location(details))


def _location(details: ErrorDetails) -> list[str | int]:
    location = details["loc"]
    if details["type"] in ("extra_forbidden", "missing"):
        return [*client_location(location[:-1]), location[-1]]  # a field's own name, however it is spelt
    return client_location(location)
