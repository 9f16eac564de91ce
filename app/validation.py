"""What pydantic finds wrong with a document, as places and sentences."""

from collections.abc import Iterator, Sequence
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from app.yaml_lines import Document, Location
from deployments.errors import sentence, unknown_keys

NO_STRING = "The key '{}' isn't a string: put it in quotes."


def explain(
    error: ValidationError, schema: type[BaseModel], document: Document, at: Location
) -> Iterator[tuple[Location, str]]:
    """Each of pydantic's errors as a place in the document and a sentence."""
    for details in error.errors(include_url=False):
        parts, value = details["loc"], details["input"]
        key = str(parts[-1]) if parts else ""
        location = document.existing((*at, *parts))
        match details["type"]:
            case "extra_forbidden":
                yield location, unknown_keys([key], keys_at(schema, parts[:-1]), "key")[0]
            case "invalid_key":
                yield (*document.existing((*at, *parts[:-1])), str(value)), NO_STRING.format(value)
            case "string_type" if key == "[key]":
                yield (*document.existing((*at, *parts[:-2])), str(value)), NO_STRING.format(value)
            case "missing":
                yield location, f"The key '{key}' is missing."
            case "model_type":  # pydantic's sentence names a Python class
                yield location, "Input should be a valid dictionary."
            case _:
                yield location, sentence(details["msg"])


def keys_at(schema: type[BaseModel], location: Sequence[str | int]) -> list[str]:
    """The keys that are valid at `location`, relative to `schema`."""
    here: list[type[BaseModel]] = [schema]
    for part in location:
        annotations = [model.model_fields[part].annotation for model in here if part in model.model_fields]
        # Parts that are no field are list indices, keys of mappings and union branches: they lead nowhere else.
        here = [model for annotation in annotations for model in _models_in(annotation)] or here
    return sorted({name for model in here for name in model.model_fields})


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _models_in(argument)
