"""What no request may ask for, whatever the engine: that the server fetches or opens something, runs what a client
wrote, or lets it reach into the deployment. Pure functions.

Source of the fields: the request types of vLLM 0.32 and SGLang 0.5.23.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic_core import from_json

from deployments.engine import Endpoint
from deployments.errors import ApiError

# Extensions of engines: other servers' addresses, places in a queue, names of requests, code, programs for templates
# and decoders, patterns that a scheduler runs by backtracking, and tensors that are unpickled.
RESERVED = frozenset(
    [
        "bootstrap_host",
        "bootstrap_port",
        "bootstrap_room",
        "chat_template",
        "custom_logit_processor",
        "custom_params",
        "data_parallel_rank",
        "disagg_prefill_dp_rank",
        "ec_transfer_params",
        "images_config",
        "input_ids",
        "kv_cache_report_mode",
        "kv_transfer_params",
        "lora_path",
        "media_io_kwargs",
        "mm_processor_kwargs",
        "priority",
        "prompt_embeds",
        "request_id",
        "rid",
        "routed_dp_rank",
        "session_id",
        "session_params",
        "stop_regex",
        "video_config",
    ]
)
# Fields by whose values the same can be said again. The second's go to Hugging Face's `apply_chat_template`: its own
# arguments aren't the template's.
_INSIDE: Mapping[str, frozenset[str]] = {
    "vllm_xargs": RESERVED,
    "chat_template_kwargs": frozenset(
        [
            "chat_template",
            "conversation",
            "load_audio_from_video",
            "max_length",
            "padding",
            "processor_kwargs",
            "return_dict",
            "return_tensors",
            "tokenize",
            "tokenizer_kwargs",
            "truncation",
            "video_load_backend",
        ]
    ),
}
WATCHED = RESERVED | _INSIDE.keys()

# Where content is: of chats, of the Responses API and Anthropic's, and of what embeds.
_CONTENT = ("messages", "input", "system", "instructions", "previous_input_messages", "query", "queries", "items")
_EMBEDDED = ("documents", "data_1", "data_2", "text_1", "text_2")
_EMBEDDING: frozenset[Endpoint] = frozenset({"embeddings", "score", "rerank"})
_URLS = frozenset({"url", "image_url", "audio_url", "video_url", "file_url", "image", "audio", "video"})
# Of content parts: tensors, and names by which what another client sent would be taken out of a cache.
_RESERVED_IN_PARTS = frozenset(
    {"image_embeds", "audio_embeds", "video_embeds", "prompt_embeds", "image_pil", "uuid", "content_hash"}
)
_ARGUMENTS = frozenset({"tool_calls", "annotations"})  # what a model said, not what it is shown
_SCHEMAS = (
    *("response_format", "text", "tools", "functions", "structured_outputs", "output_config"),
    *("json_schema", "guided_json"),
)
_REFERENCES = frozenset({"$ref", "$dynamicRef", "$recursiveRef"})
# A body in which none of these occurs has nothing of this. The last is for keys that are spelt with escapes.
_HINTS = (
    *(b"url", b'"image"', b'"audio"', b'"video"', b"_embeds", b"image_pil", b"uuid", b"content_hash", b"Ref", b"$ref"),
    b"\\u",
)


def refuse_reserved(name: str, value: Any) -> None:
    """Return if a client may set this field of a request.

    Raises:
        ApiError: 400, with the field.
    """
    if value is None:
        return
    if name in RESERVED:
        raise _reserved(name)
    inside = _INSIDE.get(name, frozenset[str]())
    for key in sorted(inside & value.keys()) if isinstance(value, dict) else ():
        if value[key] is not None:
            raise _reserved(f"{name}.{key}")


def may_reach(body: bytes) -> bool:
    """Whether `refuse_foreign` may refuse a request; False is sure, and costs little to know."""
    return any(hint in body for hint in _HINTS)


def refuse_foreign(document: Mapping[str, Any], endpoint: Endpoint) -> None:
    """Return if all of a request's content is in the request. This server fetches nothing: it could reach what clients
    can't.

    Raises:
        ApiError: 400, with the place.
    """
    for field in (*_CONTENT, *(_EMBEDDED if endpoint in _EMBEDDING else ())):
        _check_content(field, document.get(field))
    tools = document.get("tools")
    for index, tool in enumerate(tools if isinstance(tools, list) else ()):
        if isinstance(tool, dict) and tool.get("server_url") is not None:
            raise _foreign(f"tools[{index}].server_url", "names a server; this one asks no other")
    for field in _SCHEMAS:
        for where, reference in _references(field, document.get(field)):
            if not reference.startswith("#"):
                raise _foreign(where, "refers to another document; put what it refers to into the schema")


def _check_content(where: str, node: Any) -> None:
    if isinstance(node, list):
        for index, value in enumerate(node):
            _check_content(f"{where}[{index}]", value)
    elif isinstance(node, dict):
        kind = node.get("type")
        if isinstance(kind, str) and kind in _RESERVED_IN_PARTS:
            raise _reserved(f"{where}.type", kind)
        for key, value in node.items():
            if key in _RESERVED_IN_PARTS and value is not None:
                raise _reserved(f"{where}.{key}")
            if key in _URLS and isinstance(value, str) and not value.startswith("data:"):
                raise _foreign(f"{where}.{key}", "names a URL; send the content itself, as a 'data:' URL")
            if key not in _ARGUMENTS and not (key == "input" and kind == "tool_use"):
                _check_content(f"{where}.{key}", value)


def _references(where: str, node: Any) -> Iterator[tuple[str, str]]:
    """Every reference in a JSON schema, however deep, and where it is. A schema may be written as a string."""
    if isinstance(node, dict):
        for key, value in node.items():
            if key in _REFERENCES and isinstance(value, str):
                yield f"{where}.{key}", value
            yield from _references(f"{where}.{key}", value)
    elif isinstance(node, list):
        for index, value in enumerate(node):
            yield from _references(f"{where}[{index}]", value)
    elif isinstance(node, str) and node.lstrip().startswith("{") and "ef" in node:
        try:
            yield from _references(where, from_json(node))
        except ValueError:
            return  # a text that only begins like a schema


def _reserved(where: str, what: str | None = None) -> ApiError:
    return ApiError(400, f"'{what or where}' is not for clients to set.", param=where, code="unsupported_parameter")


def _foreign(where: str, why: str) -> ApiError:
    return ApiError(400, f"'{where}' {why}.", param=where, code="unsupported_url")
