"""How `/docs` describes request bodies, which the ingress itself doesn't parse."""

from typing import Any

from pydantic import BaseModel


def request_body(schema: type[BaseModel]) -> dict[str, Any]:
    """An OpenAPI operation's `requestBody` for `schema`, with the definitions it needs put in place."""
    document = schema.model_json_schema()
    inlined = _inline(document, document.pop("$defs", {}))
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": inlined}}}}


def _inline(node: Any, definitions: dict[str, Any]) -> Any:
    if isinstance(node, dict):
        if reference := node.get("$ref"):
            return _inline(definitions[reference.rpartition("/")[2]], definitions)
        return {key: _inline(value, definitions) for key, value in node.items()}
    return [_inline(item, definitions) for item in node] if isinstance(node, list) else node
