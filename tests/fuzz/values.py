"""JSON with what no library writes: literals as they are, bytes that aren't UTF-8, keys twice, nesting without end."""

import json
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from tests.fuzz.inputs import MARKER


@dataclass(frozen=True, slots=True)
class Raw:
    """A value that is written as these bytes."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Pairs:
    """An object whose keys may come twice."""

    pairs: tuple[tuple[Any, Any], ...]


def written(value: Any) -> bytes:
    """A document as JSON, or nearly."""
    match value:
        case Raw(data):
            return data
        case Pairs(pairs):
            return b"{%b}" % b",".join(b"%b:%b" % (written(key), written(item)) for key, item in pairs)
        case dict():
            return written(Pairs(tuple(value.items())))
        case list():
            return b"[%b]" % b",".join(map(written, value))
        case _:
            return json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")


def nested(depth: int, opening: bytes = b"[", inside: bytes = b"", closing: bytes = b"]") -> Raw:
    return Raw(opening * depth + inside + closing * depth)


NUMBERS = [b"1e400", b"-1e400", b"1e-400", b"NaN", b"Infinity", b"-Infinity", b"-0", b"0.1e1"]
# JSON's parser takes integers of 4300 digits, as Python does; one more in what is made of them is a fault.
HUGE = [
    *(b"%d" % 2**63, b"%d" % (-(2**63) - 1), b"9" * 400, b"9" * 4300, b"-" + b"9" * 4300),
    *(b"9" * 5001, b"0." + b"3" * 5000),
]
STRINGS = [rb'"\ud800"', rb'"\udfff\ud800"', b'"\xff\xfe"', b'"\xed\xa0\x80"', b'"\x00"', rb'"\u0000"', b'"\xf0\x9f"']
BROKEN = [b"", b"tru", b"'x'", b'"', b"[", b"{", b"]", b"{]", b"[1,]", b"{,}", b"//", b"undefined", b"\xef\xbb\xbf1"]
BROKEN += [b"01", b"1.", b"+1", b"0x1"]
WORDS = ["", " ", "\x00", "\r\nx: y", "\u2028", "\ufeff", "a\u0301", "\U0001f600", MARKER, "<|end|>", "%s{}"]
LONG = [MARKER + "word " * 3000, "\U0001f600" * 9000, "\u0000" * 5000, "a," * 9000]

Values = SearchStrategy[Any]


def one_of(**parts: int) -> Values:
    """One of the strategies of these names, which come as often as the numbers say. (hypothesis' own `one_of` gives
    each branch of a branch as much as any other.)"""
    return st.sampled_from([name for name, part in parts.items() for _ in range(part)]).flatmap(_named)


def _named(name: str) -> Values:
    return _VALUES[name]


def _raw(values: list[bytes]) -> Values:
    return st.sampled_from(values).map(Raw)


def _nesting(deepest: int, *around: bytes) -> Values:
    return st.integers(1, deepest).map(lambda depth: nested(depth, *around))


texts: SearchStrategy[str] = st.one_of(
    st.text(max_size=12), st.sampled_from(WORDS), st.integers(1, 40).map(MARKER.__mul__), st.sampled_from(LONG)
)
scalars: Values = st.one_of(st.none(), st.booleans(), st.integers(-3, 40), st.integers(), st.floats(), texts)
trees: Values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3), max_leaves=8
)
# The parser goes 200 levels deep.
deep_objects: Values = st.one_of(
    _nesting(210, b'{"content":', b"1", b"}"),
    _nesting(95, b'{"allOf":[', b"{}", b"]}"),
    _nesting(190, b'{"not":', b"{}", b"}"),
    _nesting(95, b'{"properties":{"a":', b"{}", b"}}"),
)
deep_lists: Values = st.one_of(_nesting(210), _nesting(95, b'[{"text":', b'"x"', b"}]"))
bottomless: Values = st.sampled_from(
    [nested(10_000), nested(100_000), nested(100_000, b'{"a":', b"1", b""), nested(100_000, b'{"a":', b"1", b"}")]
)
numbers: Values = st.one_of(st.integers(-3, 40), st.integers(), st.floats(), _raw(NUMBERS), _raw(HUGE))
_VALUES: dict[str, Values] = {
    "scalars": scalars,
    "texts": texts,
    "trees": trees,
    "numbers": numbers,
    "deep_objects": deep_objects,
    "deep_lists": deep_lists,
    "bottomless": bottomless,
    "zeros": st.integers(0, 3000).map([0].__mul__),
    "strings": _raw(STRINGS),
    "broken": _raw(BROKEN),
}
odd = one_of(scalars=5, trees=3, numbers=3, deep_objects=2, deep_lists=2, bottomless=1, zeros=1, strings=1, broken=1)
_VALUES["odd"] = odd


def like(value: Any) -> Values:
    """What may stand where a value is: mostly of its kind, for that gets farthest."""
    match value:
        case bool() | None:
            return one_of(scalars=1, odd=2)
        case int() | float():
            return one_of(numbers=2, odd=1)
        case str():
            return one_of(texts=8, strings=1, odd=4)
        case list():
            more = st.integers(0, 200).map(value.__mul__) | st.lists(trees, max_size=4).map(value.__add__)
            return st.sampled_from([more, more, deep_lists, odd]).flatmap(lambda chosen: chosen)
        case dict():
            fields = st.dictionaries(texts, trees, min_size=1, max_size=3).map(value.__or__)
            return st.sampled_from([fields, deep_objects, odd]).flatmap(lambda chosen: chosen)
        case _:
            return odd
