"""YAML with the line of each key, and without the trap that a key given twice silently wins."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import yaml

Location = tuple[str | int, ...]


class YamlError(Exception):
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
    try:
        return _load(text)
    except yaml.reader.ReaderError as error:
        message = f"This is not YAML: the character #x{error.character:04x} is not allowed."
        raise YamlError(message, text.count("\n", 0, error.position) + 1) from None
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else None
        raise YamlError(f"This is not YAML: {error.problem or error.context}.", line) from None
    except RecursionError:
        raise YamlError("This is nested too deep, or holds itself.", None) from None


def _load(text: str) -> Document:
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return Document(None, {})
        # First, for constructing puts what is merged (`<<: *other`) among a mapping's own keys.
        lines = dict(_lines(node, ()))
        return Document(loader.construct_document(node), lines)
    finally:
        loader.dispose()


class _Loader(yaml.SafeLoader):
    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
            # PyYAML lets a scalar's own error through: of a date with a month 13, of `!!int x`.
            raise YamlError(f"This can't be read: '{node.value}'.", node.start_mark.line + 1) from None


def _lines(node: yaml.Node, at: Location) -> Iterator[tuple[Location, int]]:
    if isinstance(node, yaml.MappingNode):
        seen: set[tuple[str, str]] = set()
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue  # constructing refuses it
            if (key.tag, key.value) in seen:
                raise YamlError(f"The key '{key.value}' is given twice.", key.start_mark.line + 1)
            seen.add((key.tag, key.value))
            yield (*at, key.value), key.start_mark.line + 1
            yield from _lines(value, (*at, key.value))
    elif isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            yield (*at, index), item.start_mark.line + 1
            yield from _lines(item, (*at, index))
