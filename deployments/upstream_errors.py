"""A remote server's errors as this API's own: OpenAI's envelope passes as it is, all else is put into one."""

import json
import re
from collections.abc import Mapping
from typing import Any

from deployments.engine import Endpoint, EngineResponse
from deployments.errors import ApiError, dotted
from deployments.upstream import RETRY_AFTER_S
from deployments.upstream_server import bad_gateway

EXCERPT = 200  # characters of a foreign text that a client may see
KEPT = frozenset({413, 429, 503, 504})  # statuses that say what a client can do, whatever the body is
_RETRY_AFTER = re.compile(r"[\w ,:.+-]{1,40}", re.ASCII)
_UNSEEN = re.compile(r"<(script|style)\b.*?</\1\s*>|<[^>]*>|\b\w+://\S*", re.DOTALL | re.IGNORECASE)


def error_answer(
    status: int, headers: Mapping[str, str], body: bytes, endpoint: Endpoint, api_key: str | None
) -> EngineResponse:
    """The answer to a client for one of a remote server that isn't a success.

    Raises:
        ApiError: that is the answer.
    """
    if status in (401, 403):
        # The key is this pool's, not the client's; and what is said of it may hold a part of it.
        raise bad_gateway(f"The remote server refuses this pool's API key (status {status}).")
    if api_key:
        body = body.replace(api_key.encode(), b"***")
    waits = _waits(status, headers)
    if status < 400:
        raise bad_gateway(f"The remote server answered with status {status}, which isn't followed.")
    document = _document(body)
    if document is None:
        text = excerpt(body)
        message = f"The remote server answered with status {status}" + (f": {text}" if text else ".")
        raise _error(status if status in KEPT else 502, message, code="upstream_error", headers=waits)
    if _is_envelope(document, endpoint):
        return EngineResponse(body, status, headers=waits)
    told, param, code = _read(document)
    raise _error(status, told or f"The remote server answered with status {status}.", param, code, waits)


def excerpt(body: bytes) -> str:
    """The beginning of a foreign text in one line, without markup and addresses."""
    text = _UNSEEN.sub(" ", body[: 20 * EXCERPT].decode("utf-8", "replace"))
    text = " ".join("".join(character if character.isprintable() else " " for character in text).split())
    return text if len(text) <= EXCERPT else text[:EXCERPT] + "…"


def _waits(status: int, headers: Mapping[str, str]) -> dict[str, str]:
    if status not in (429, 503):
        return {}
    given = headers.get("retry-after", "")
    return {"retry-after": given if _RETRY_AFTER.fullmatch(given) else str(RETRY_AFTER_S)}


def _document(body: bytes) -> dict[str, Any] | None:
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


def _is_envelope(document: dict[str, Any], endpoint: Endpoint) -> bool:
    """Whether clients of `endpoint` expect such a document: OpenAI's, or Anthropic's for its own API."""
    error = document.get("error")
    typed = (document.get("type") == "error") == (endpoint == "messages")
    return typed and isinstance(error, dict) and isinstance(error.get("message"), str)


def _read(document: dict[str, Any]) -> tuple[str | None, str | None, str | None]:
    """Message, param and code of an error document of any shape that servers are known to have."""
    inner = document.get("error")
    if isinstance(inner, dict):  # the envelope of the other API
        document = inner
    elif isinstance(inner, str):  # TGI, Triton
        return inner, None, _text(document.get("error_type"))
    detail = document.get("detail")
    if isinstance(detail, list) and detail:  # FastAPI's validation
        return _validation(detail)
    message = _text(document.get("message"))  # vLLM of old, TensorRT-LLM
    if message is None and (said := _text(detail)):  # FastAPI, often no more than "Not Found"
        message = f"The remote server says: {said}"
    return message, _text(document.get("param")), _text(document.get("code"))


def _validation(details: list[Any]) -> tuple[str, str | None, str | None]:
    """FastAPI's list of what doesn't fit; the first is the one to blame."""
    told = [_of_field(detail) for detail in details if isinstance(detail, dict)]
    message = "; ".join(f"{param}: {text}" if param else text for param, text in told)
    return excerpt(message.encode()), told[0][0] if told else None, "invalid_value"


def _of_field(detail: dict[str, Any]) -> tuple[str | None, str]:
    location = detail.get("loc")
    parts = [part for part in location if isinstance(part, str | int)] if isinstance(location, list) else []
    return dotted(parts[1:] if parts[:1] == ["body"] else parts) or None, str(detail.get("msg"))


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _error(
    status: int,
    message: str,
    param: str | None = None,
    code: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> ApiError:
    kind = "rate_limit_error" if status == 429 else "invalid_request_error" if status < 500 else "server_error"
    return ApiError(status, message, type=kind, param=param, code=code, headers=headers)
