"""YAML with the line of each key, and without the trap that a key given twice silently wins."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import yaml

Location = tuple[str | int, ...]


class YamlError(ValueError):
    """The text isn't YAML that can be used."""

    def __init__(self, message: str, line: int | None) -> None:
        super().__init__(message)
        self.line = line


@dataclass(frozen=True, slots=True)
class Document:
    """A document's value, and where in the text it stands."""

    value: Any
    lines: dict[Location, int]

    def existing(self, location: Location) -> Location:
        """`location` without the parts that aren't in the document: a missing key, a union branch of pydantic's."""
        found: list[str | int] = []
        value = self.value
        for part in location:
            inside = dict(enumerate(value)) if isinstance(value, list) else value
            if isinstance(inside, dict) and part in inside:
                found.append(part)
                value = inside[part]
        return tuple(found)

    def line(self, location: Location) -> int | None:
        """The line of what is at `location`, or of the nearest thing around it that there is."""
        return next(
            (self.lines[location[:end]] for end in range(len(location), -1, -1) if location[:end] in self.lines), None
        )


def load(text: str) -> Document:
    """Read one document.

    Raises:
        YamlError: it can't be read, or a key is given twice.
    """
    loader = yaml.SafeLoader(text)
    try:
        node = loader.get_single_node()
        value = loader.construct_document(node) if node is not None else None
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else None
        raise YamlError(f"This is not YAML: {error.problem or error.context}.", line) from None
    except yaml.YAMLError as error:
        raise YamlError(f"This is not YAML: {error}.", None) from None
    finally:
        loader.dispose()
    return Document(value, dict(_lines(node, ())) if node is not None else {})


def _lines(node: yaml.Node, at: Location) -> Iterator[tuple[Location, int]]:
    if isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key, value in node.value:
            if key.value in seen:
                raise YamlError(f"The key '{key.value}' is given twice.", key.start_mark.line + 1)
            seen.add(key.value)
            yield (*at, key.value), key.start_mark.line + 1
            yield from _lines(value, (*at, key.value))
    elif isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            yield (*at, index), item.start_mark.line + 1
            yield from _lines(item, (*at, index))
