"""YAML is read with the lines of its keys, and no text makes it raise anything but YamlError."""

import pytest

from app.yaml_lines import YamlError, load

TEXT = """\
# a comment
a: 1
b:
  c: [x,
      y]
  d:
    - e: 2
      f: {g: 3,
          h: 4}
    - i
"""


def refused(text: str) -> tuple[str, int | None]:
    with pytest.raises(YamlError) as raised:
        load(text)
    return str(raised.value), raised.value.line


def test_the_value_is_yamls() -> None:
    assert load(TEXT).value == {"a": 1, "b": {"c": ["x", "y"], "d": [{"e": 2, "f": {"g": 3, "h": 4}}, "i"]}}


def test_each_key_and_item_has_its_line() -> None:
    assert load(TEXT).lines == {
        ("a",): 2,
        ("b",): 3,
        ("b", "c"): 4,
        ("b", "c", 0): 4,
        ("b", "c", 1): 5,
        ("b", "d"): 6,
        ("b", "d", 0): 7,
        ("b", "d", 0, "e"): 7,
        ("b", "d", 0, "f"): 8,
        ("b", "d", 0, "f", "g"): 8,
        ("b", "d", 0, "f", "h"): 9,
        ("b", "d", 1): 10,
    }


def test_the_line_of_what_is_not_there_is_the_nearest_around_it() -> None:
    document = load(TEXT)
    assert document.line(("b", "d", 0, "f", "missing", "deeper")) == 8
    assert document.line(("b", "d", 5)) == 6
    assert document.line(("missing",)) is None
    assert load("[1]").line(("x",)) is None


def test_existing_drops_what_is_not_in_the_document() -> None:
    document = load(TEXT)
    assert document.existing(("b", "d", 0, "e")) == ("b", "d", 0, "e")
    assert document.existing(("b", "dict[str,any]", "d", 1)) == ("b", "d", 1)  # a union branch of pydantic's
    assert document.existing(("b", "d", 2)) == ("b", "d")
    assert document.existing(("a", "missing")) == ("a",)


@pytest.mark.parametrize("text", ["", "# nothing\n", "---\n"])
def test_an_empty_document(text: str) -> None:
    assert load(text).value is None


@pytest.mark.parametrize(
    ("text", "message", "line"),
    [
        ("a: 1\nb: 2\na: 3\n", "The key 'a' is given twice.", 3),
        ("a:\n  - b: 1\n    'b': 2\n", "The key 'b' is given twice.", 3),
        ("a: {b: 1,\n b: 2}", "The key 'b' is given twice.", 2),
        ("1: a\n1: b\n", "The key '1' is given twice.", 2),
        ("a: 1\n\tb: 2\n", "This is not YAML: found character '\\t' that cannot start any token.", 2),
        ("a: [1, 2\nb: 3\n", "This is not YAML: expected ',' or ']', but got ':'.", 2),
        ("a: b: c\n", "This is not YAML: mapping values are not allowed here.", 1),
        ("a: *gone\n", "This is not YAML: found undefined alias 'gone'.", 1),
        ("a: 1\n---\nb: 2\n", "This is not YAML: but found another document.", 2),
        ("a: !!python/name:os.system x\n", "This is not YAML: could not determine a constructor for the tag", 1),
        ("a: 1\n? [b, c]\n: 2\n", "This is not YAML: found unhashable key.", 2),
        ("a: 1\nb: \x00\n", "This is not YAML: the character #x0000 is not allowed.", 2),
        ("a: 1\nb: 2024-13-01\n", "This can't be read: '2024-13-01'.", 2),
        ("a: !!timestamp soon\n", "This can't be read: 'soon'.", 1),
        ("a: !!int ''\n", "This can't be read: ''.", 1),
        ("a: !!bool perhaps\n", "This can't be read: 'perhaps'.", 1),
        ("a: &a [*a]\n", "This is nested too deep, or holds itself.", None),
        ("a: &a {b: *a}\n", "This is nested too deep, or holds itself.", None),
        ("[" * 5000, "This is nested too deep, or holds itself.", None),
        ("a: " + "[" * 3000 + "]" * 3000, "This is nested too deep, or holds itself.", None),
    ],
)
def test_what_cannot_be_used(text: str, message: str, line: int | None) -> None:
    said, where = refused(text)
    assert said.startswith(message)
    assert where == line


def test_keys_that_only_look_alike_are_two() -> None:
    assert load("1: a\n'1': b\n").value == {1: "a", "1": "b"}


def test_what_is_merged_is_not_given_twice() -> None:
    document = load("a: &a {x: 1}\nb: &b {x: 2, y: 2}\nc:\n  <<: [*a, *b]\n  x: 3\n")
    assert document.value["c"] == {"x": 3, "y": 2}
    assert document.line(("c", "x")) == 5


def test_what_is_repeated_by_an_alias_has_the_lines_of_its_anchor() -> None:
    document = load("a: &a\n  x: 1\nb: *a\n")
    assert document.value["b"] == {"x": 1}
    assert (document.line(("b",)), document.line(("b", "x"))) == (3, 2)
