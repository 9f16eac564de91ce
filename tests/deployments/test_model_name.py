import json
import random
import time
from typing import Any

import pytest

from deployments.model_name import answer_renamer, asks_to_stream, replace_model, values_of

KEYS = ["model", "Model", "model ", "a", "mod\\el", 'say "model', "", "é", "stream"]
STRINGS = ["", "x", '"model":"x"', "a\\", '\\"', "}{][", ",:", "日本 🎉", "\n\t\x00", "model"]


def random_value(rng: random.Random, depth: int = 0) -> Any:
    kind = rng.randrange(8 if depth < 4 else 6)
    match kind:
        case 0:
            return rng.choice([True, False, None])
        case 1:
            return rng.randrange(-(10**6), 10**6)
        case 2:
            return rng.choice([0.5, -1e300, 1e-7])
        case 3 | 4 | 5:
            return rng.choice(STRINGS)
        case 6:
            return [random_value(rng, depth + 1) for _ in range(rng.randrange(4))]
    return random_object(rng, depth + 1)


def random_object(rng: random.Random, depth: int = 0) -> dict[str, Any]:
    return {rng.choice(KEYS): random_value(rng, depth) for _ in range(rng.randrange(5))}


def written(rng: random.Random, value: Any) -> bytes:
    separators = rng.choice([(",", ":"), (", ", ": "), (" ,\n", "\t: "), None])
    return json.dumps(
        value, ensure_ascii=rng.random() < 0.5, indent=rng.choice([None, 1]), separators=separators
    ).encode()


@pytest.mark.parametrize("seed", range(400))
def test_random_documents_change_in_their_model_alone(seed: int) -> None:
    rng = random.Random(seed)
    document = random_object(rng)
    changed = replace_model(written(rng, document), 'new "ñame"')
    expected = document | {"model": 'new "ñame"'} if "model" in document else document
    assert json.loads(changed) == expected
    assert list(json.loads(changed)) == list(expected)


@pytest.mark.parametrize("seed", range(200))
def test_spans_are_those_of_the_values(seed: int) -> None:
    rng = random.Random(seed)
    document = random_object(rng)
    body = written(rng, document)
    for key in KEYS:
        spans = list(values_of(body, key))
        assert [json.loads(body[start:end]) for start, end in spans] == ([document[key]] if key in document else [])


def test_all_else_keeps_its_bytes() -> None:
    body = b' {\r\n"b" : 1.0e+05, "model"\t:\n"old" ,"messages":[{"model":"old","x":"\\u00e9\\/"}], "n":  -0}\n'
    assert replace_model(body, "new") == body.replace(b'\n"old"', b'\n"new"')


@pytest.mark.parametrize(
    ("body", "changed"),
    [
        (b'{"model":"a","model":"b"}', b'{"model":"new","model":"new"}'),
        (b'{"model":null,"x":{"model":"b"},"model":["]",{"}":1}]}', b'{"model":"new","x":{"model":"b"},"model":"new"}'),
        (b'{"mod\\u0065l":"a"}', b'{"mod\\u0065l":"new"}'),
        (b'{"x":"\\"model\\":\\"a\\"","model":"a\\"}"}', b'{"x":"\\"model\\":\\"a\\"","model":"new"}'),
        (b'{"x\\"model":"a"}', b'{"x\\"model":"a"}'),
        (b'{"x":"model","y":1}', b'{"x":"model","y":1}'),
        (b'{"model":12}', b'{"model":"new"}'),
        (b"{}", b"{}"),
        (b" { } ", b" { } "),
    ],
)
def test_which_model_it_is(body: bytes, changed: bytes) -> None:
    assert replace_model(body, "new") == changed


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b'"model"',
        b"{",
        b'{"model"',
        b'{"model":',
        b'{"model":"x',
        b'{"model":"x"',
        b'{"model":[1}',
        b"{1:2}",
    ]
    + [b'{"a":1 "model":2}', b'{"a":}', b'{"a":1,}', b'{"a"::1}', b'{{"a":1}:1}', b'{"\\ud":1,"\\q":2}'],
)
def test_what_is_no_object_is_an_error(body: bytes) -> None:
    with pytest.raises(ValueError):
        replace_model(body, "new")


@pytest.mark.parametrize("cut", range(1, 60))
def test_a_cut_document_is_an_error(cut: int) -> None:
    body = b'{"messages":[{"role":"user","content":"a \\"b\\""}],"model":"x"}'
    with pytest.raises(ValueError):
        replace_model(body[:cut], "new")


def test_long_documents_are_read_fast() -> None:
    image = b"A" * 20_000_000
    tokens = b",".join([b"12345"] * 1_000_000)
    began = time.perf_counter()
    body = b'{"prompt":[' + tokens + b'],"image":"' + image + b'","quotes":"' + b'\\"' * 1_000_000 + b'","model":"x"}'
    assert replace_model(body, "new").endswith(b'"model":"new"}')
    assert time.perf_counter() - began < 5


def test_deep_documents_are_read() -> None:
    deep = b"[" * 100_000 + b"]" * 100_000
    assert replace_model(b'{"a":' + deep + b',"model":1}', "new") == b'{"a":' + deep + b',"model":"new"}'


@pytest.mark.parametrize(
    ("body", "asks"),
    [
        (b'{"stream":true}', True),
        (b'{"stream": true , "model":"x"}', True),
        (b'{"stream":false}', False),
        (b'{"stream":null}', False),
        (b'{"stream":"true"}', False),
        (b'{"stream":true,"stream":false}', False),
        (b'{"stream":false,"stream":true}', True),
        (b'{"x":{"stream":true}}', False),
        (b"{}", False),
    ],
)
def test_whether_a_stream_is_asked_for(body: bytes, asks: bool) -> None:
    assert asks_to_stream(body) is asks


@pytest.mark.parametrize(
    ("answer", "renamed"),
    [
        (b'{"model":"org/old"}', b'{"model":"new"}'),
        (b'{"id":"1", "model" :\n "org/old","x":1}', b'{"id":"1", "model" :\n "new","x":1}'),
        (b'{"response":{"model":"org/old"}}', b'{"response":{"model":"new"}}'),
        (b'{"model":"org\\/old"}', b'{"model":"new"}'),
        (b'{"model":"\\u006Frg/\\u006fld"}', b'{"model":"new"}'),
        (b'{"model":"org/older"}', b'{"model":"org/older"}'),
        (b'{"model":"x-org/old"}', b'{"model":"x-org/old"}'),
        (b'{"name":"org/old"}', b'{"name":"org/old"}'),
        (b'{"x-model":"org/old"}', b'{"x-model":"org/old"}'),
        (b'{"text":"\\"model\\":\\"org/old\\""}', b'{"text":"\\"model\\":\\"org/old\\""}'),
        (b'{"say \\"model":"org/old"}', b'{"say \\"model":"org/old"}'),
        (b'{"text":"\\\\","model":"org/old"}', b'{"text":"\\\\","model":"new"}'),
        (
            b'data: {"model":"org/old"}\n\ndata: {"model":"org/old"}\n',
            b'data: {"model":"new"}\n\ndata: {"model":"new"}\n',
        ),
        (b"", b""),
    ],
)
def test_the_name_in_answers(answer: bytes, renamed: bytes) -> None:
    assert answer_renamer("org/old", "new")(answer) == renamed


@pytest.mark.parametrize("name", ["a.b", "a+b*", 'say "x"', "back\\slash", "naïve", "🎉 x", "tab\t", "/", "A-1"])
@pytest.mark.parametrize("ascii_only", [True, False])
def test_any_name_is_found_and_given(name: str, ascii_only: bool) -> None:
    document = {"model": name, "text": f'"model":"{name}"', "x": {"model": f"{name}x"}}
    body = json.dumps(document, ensure_ascii=ascii_only).encode()
    assert json.loads(answer_renamer(name, r"new\g<1>")(body)) == document | {"model": r"new\g<1>"}
    assert json.loads(answer_renamer("a", name)(b'{"model":"a"}')) == {"model": name}


@pytest.mark.parametrize("seed", range(200))
def test_text_in_answers_is_never_changed(seed: int) -> None:
    rng = random.Random(seed)
    noise = "".join(rng.choices(['"', "\\", "model", ":", "old", " ", "{", "é", "\n"], k=30))
    body = json.dumps({"text": noise, noise: "old", "model": "old"}, ensure_ascii=rng.random() < 0.5).encode()
    assert json.loads(answer_renamer("old", "new")(body)) == {"text": noise, noise: "old", "model": "new"}


def test_the_same_name_costs_nothing() -> None:
    line = b'data: {"model":"x"}\n'
    assert answer_renamer("x", "x")(line) is line
    plain = b'data: {"text":"x"}\n'
    assert answer_renamer("x", "y")(plain) is plain
