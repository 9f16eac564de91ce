"""From requests to blocks."""

import json
import subprocess
import sys
from typing import Any

import pytest

from deployments.replica_choice.prefix import BLOCK_BYTES, MAX_BLOCKS, chain, prompt_blocks

LONG = "All work and no play makes Jack a dull boy. " * 40


def chat(*contents: Any, **fields: Any) -> list[int]:
    roles = ("system", "user", "assistant")
    messages = [{"role": roles[min(i, 1 + i % 2)], "content": content} for i, content in enumerate(contents)]
    return prompt_blocks("chat/completions", {"messages": messages, **fields}, "m")


def common(one: list[int], other: list[int]) -> int:
    count = 0
    while count < min(len(one), len(other)) and one[count] == other[count]:
        count += 1
    return count


def test_a_block_is_full_and_depends_on_all_before_it() -> None:
    parts = [bytes([letter]) * BLOCK_BYTES for letter in b"abc"]
    one, two = chain(parts, b""), chain([parts[0], b"x" * BLOCK_BYTES, parts[2], b"rest"], b"")
    assert len(one) == len(two) == 3
    assert one[0] == two[0] and one[1] != two[1] and one[2] != two[2]
    assert all(0 <= block < 2**64 for block in one)
    assert chain([b"a" * (BLOCK_BYTES - 1)], b"") == []


def test_how_the_text_is_cut_into_parts_makes_no_difference() -> None:
    text = LONG.encode()
    assert chain([text], b"") == chain([text[at : at + 7] for at in range(0, len(text), 7)], b"")


def test_a_conversation_s_next_turn_has_all_blocks_of_this_one() -> None:
    turns = [LONG, "Who?", LONG[7:], "Why?", LONG[3:], "When?"]
    first, second, third = (chat(*turns[:count]) for count in (2, 4, 6))
    assert first == second[: len(first)] and second == third[: len(second)]
    assert 0 < len(first) < len(second) < len(third)


def test_conversations_with_the_same_system_prompt_have_its_blocks_in_common() -> None:
    one, other = chat(LONG, "A" + LONG), chat(LONG, "B" + LONG)
    whole = len(LONG) // BLOCK_BYTES
    assert whole - 1 <= common(one, other) <= whole < len(one)


@pytest.mark.parametrize("other", [{"model": "n"}, {"adapter": "a"}])
def test_models_and_adapters_have_nothing_in_common(other: dict[str, str]) -> None:
    document = {"messages": [{"role": "user", "content": LONG}]}
    here = prompt_blocks("chat/completions", document, "m")
    there = prompt_blocks("chat/completions", document, **{"model": "m", **other})
    assert here and not set(here) & set(there)


def test_tools_come_first() -> None:
    tools = [{"type": "function", "function": {"name": "f", "description": LONG}}]
    one, other = (chat(LONG, "Hi", tools=kind) for kind in (tools, []))
    assert common(one, other) == 0


@pytest.mark.parametrize(
    "changed",
    [
        {"role": "tool"},
        {"content": LONG + " "},
        {"content": [{"type": "text", "text": LONG}, {"type": "image_url", "image_url": {"url": "data:a"}}]},
        {"tool_calls": [{"id": "1"}]},
    ],
    ids=str,
)
def test_what_makes_another_prompt_makes_other_blocks(changed: dict[str, Any]) -> None:
    """Told by what comes after the message that differs."""
    end = {"role": "user", "content": LONG}

    def blocks(message: dict[str, Any]) -> list[int]:
        return prompt_blocks("chat/completions", {"messages": [message, end]}, "m")

    message = {"role": "user", "content": LONG}
    assert blocks(message)[-1] != blocks({**message, **changed})[-1]


def test_pictures_are_told_apart_at_no_length() -> None:
    def blocks(url: str) -> list[int]:
        return chat([{"type": "image_url", "image_url": {"url": url}}], LONG)

    one, other = blocks("data:" + "a" * 10**6), blocks("data:" + "b" * 10**6)
    assert len(one) == len(other) <= len(chat("", LONG)) + 1 and common(one, other) == 0


def test_a_text_part_is_as_good_as_a_string() -> None:
    assert chat(LONG, LONG) == chat(LONG, [{"type": "text", "text": LONG}])


@pytest.mark.parametrize("prompt", [LONG, [LONG, "other"], list(range(1000)), [list(range(1000)), [1]]], ids=type)
def test_prompts_of_completions(prompt: Any) -> None:
    blocks = prompt_blocks("completions", {"prompt": prompt}, "m")
    longer = prompt[0] if isinstance(prompt, list) and not isinstance(prompt[0], int) else prompt
    assert blocks and blocks == prompt_blocks("completions", {"prompt": longer + longer}, "m")[: len(blocks)]


def test_there_is_a_bound_and_what_is_beyond_makes_no_difference() -> None:
    most = BLOCK_BYTES * MAX_BLOCKS
    one, other = (chat("x" * most + end) for end in ("a", "b" * most))
    assert len(one) == MAX_BLOCKS and one == other
    assert len(prompt_blocks("completions", {"prompt": [7] * most}, "m")) == MAX_BLOCKS


@pytest.mark.parametrize(
    ("endpoint", "document"),
    [
        ("messages", {"system": LONG, "messages": []}),
        ("messages", {"system": [{"type": "text", "text": LONG}]}),
        ("responses", {"instructions": LONG}),
        ("responses", {"input": LONG}),
        ("responses", {"input": [{"role": "user", "content": [{"type": "input_text", "text": LONG}]}]}),
    ],
)
def test_other_endpoints_that_generate(endpoint: Any, document: dict[str, Any]) -> None:
    assert len(prompt_blocks(endpoint, document, "m")) >= len(LONG) // BLOCK_BYTES


@pytest.mark.parametrize(
    "body",
    [
        b'{"messages": 7}',
        b'{"messages": [7, null, [], {"role": 3}]}',
        b'{"messages": [{"role": null, "content": {"a": 1e400}}]}',
        b'{"prompt": [[]]}',
        b'{"prompt": [null]}',
        b'{"prompt": {"a": 1}}',
        b'{"prompt": [true]}',
    ],
    ids=str,
)
@pytest.mark.parametrize("endpoint", ["chat/completions", "completions"])
def test_what_an_engine_will_refuse_has_no_blocks_and_is_no_error(endpoint: Any, body: bytes) -> None:
    assert prompt_blocks(endpoint, json.loads(body), "m") == []


def test_endpoints_without_a_prompt_have_no_blocks() -> None:
    assert prompt_blocks("embeddings", {"input": LONG, "prompt": LONG}, "m") == []


def test_blocks_are_the_same_in_every_process() -> None:
    code = f"from deployments.replica_choice.prefix import prompt_blocks as p; print(p('completions', {{'prompt': {LONG!r}}}, 'm'))"  # noqa: E501
    seen = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60).stdout
    assert json.loads(seen) == prompt_blocks("completions", {"prompt": LONG}, "m")
