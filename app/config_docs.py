"""What docs/configuration.md says, from the types that read a configuration. `make docs` writes it."""

import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from app.check import INGRESS, POOL
from app.config import IngressConfig, environment_variables
from app.environment import PREFIX, PROCESS_VARIABLES
from deployments import registry
from deployments.config import PoolConfig

HEADS = ("Key", "Type", "Default", "Bounds", "Meaning")
BOUNDS = {
    "minimum": "at least {}",
    "exclusiveMinimum": "more than {}",
    "maximum": "at most {}",
    "exclusiveMaximum": "less than {}",
    "minLength": "at least {} long",
    "minItems": "at least {} long",
}
TYPES = {"boolean": "true or false", "object": "mapping", "array": "list"}

INTRODUCTION = f"""\
# Configuration

<!-- `make docs` writes this page from the code. Edit the descriptions there. -->

A config file is Ray Serve's own, as `serve run` and `serve deploy` take it. What is Enginehouse's in it is below;
every other key is described in [Ray Serve's schema](https://docs.ray.io/en/latest/serve/production-guide/config.html).
An unknown key is an error, never ignored. `enginehouse check FILE` finds what is wrong, and starts nothing.

- The application with `import_path: {INGRESS}` is the ingress, which clients talk to.
- Each application with `import_path: {POOL}` is a pool: one model on one engine. Write `route_prefix: null` for it.
"""


def render() -> str:
    """The page."""
    return "\n".join([INTRODUCTION, *_ingress(), *_pools(), *_environment()])


def _ingress() -> Iterator[str]:
    yield "## The ingress\n"
    yield "`user_config` of its deployment `Ingress`. A change of it applies without a restart. It takes no `args`.\n"
    yield table(HEADS, rows(IngressConfig))


def _pools() -> Iterator[str]:
    yield "## A pool\n"
    yield "`args` of its application.\n"
    yield table(HEADS, rows(PoolConfig))
    for engine in sorted(registry.ENGINES):
        args = registry.args_type(engine)
        yield f"### `engine_args` of `{engine}`\n"
        yield " ".join((args.__doc__ or "").split()) + "\n"
        if found := list(rows(args)):
            yield table(HEADS, found)


def _environment() -> Iterator[str]:
    yield "## Environment variables\n"
    yield f"Any other variable that begins with `{PREFIX}` is an error.\n"
    overrides = {
        variable: f"Overrides `{key}` of the ingress's `user_config`."
        for key, variable in environment_variables().items()
    }
    described = {**PROCESS_VARIABLES, **overrides}
    yield table(("Variable", "Meaning"), ((f"`{name}`", meaning) for name, meaning in described.items()))


def rows(model: type[BaseModel]) -> Iterator[tuple[str, ...]]:
    """A row, in the order of `HEADS`, for each key of `model`, and for each key of the models inside it."""
    schema = model.model_json_schema()
    return _rows(schema, schema.get("$defs", {}), "")


def _rows(schema: Mapping[str, Any], definitions: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, ...]]:
    for name, field in schema.get("properties", {}).items():
        branches = [branch for branch in field.get("anyOf", []) if branch.get("type") != "null"] or [field]
        kind = branches[0]
        value = {} if "$ref" in kind else field.get("default")  # what is in a model has rows of its own
        default = "required" if name in schema.get("required", []) else _default(value)
        bounds = ", ".join(text.format(kind[bound]) for bound, text in BOUNDS.items() if bound in kind)
        yield (
            f"`{prefix}{name}`",
            " or ".join(dict.fromkeys(map(_type, branches))),
            default,
            bounds,
            field.get("description", ""),
        )
        places = ((_values(kind), f"{name}.<name>."), (kind.get("items", {}), f"{name}[]."), (kind, f"{name}."))
        for inside, below in places:
            if reference := inside.get("$ref"):
                inner = definitions[reference.rpartition("/")[2]]
                yield from _rows(inner, definitions, f"{prefix}{below}")


def _type(kind: Mapping[str, Any]) -> str:
    if "enum" in kind:
        return " or ".join(f"`{value}`" for value in kind["enum"])
    if "$ref" in kind:
        return TYPES["object"]
    name = TYPES.get(kind["type"], str(kind["type"]))
    return f"list of {_plural(kind['items'])}" if kind["type"] == "array" else name


def _plural(kind: Mapping[str, Any]) -> str:
    return _type(kind) if "enum" in kind else f"{_type(kind)}s"


def _values(kind: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema of a mapping's values, where there is one."""
    values = kind.get("additionalProperties")
    return values if isinstance(values, dict) else {}


def _default(value: Any) -> str:
    """As it would be written in YAML; nothing where the description says what happens then."""
    return "" if value is None else f"`{value if isinstance(value, str) else json.dumps(value)}`"


def table(heads: tuple[str, ...], body: Iterable[Iterable[str]]) -> str:
    """A Markdown table."""
    lines = [heads, ["---"] * len(heads), *body]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines) + "\n"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(render(), "utf-8")
