"""What an answer took is told from its bytes: by its usage, or by its events."""

import json
from typing import Any

import pytest

from app.access import usage
from app.access.usage import AnswerTokens, tokens_in, usage_in

PROMPT = 7  # the estimate
OPENAI = {
    "prompt_tokens": 5,
    "completion_tokens": 20,
    "total_tokens": 25,
    "prompt_tokens_details": {"cached_tokens": 1},
}


def whole(document: Any, status: int = 200) -> int | None:
    answer = AnswerTokens(PROMPT)
    answer.start(status)
    answer.body(document if isinstance(document, bytes) else json.dumps(document).encode(), more=False)
    return answer.total()


def streamed(*chunks: bytes, ended: bool = True) -> int | None:
    answer = AnswerTokens(PROMPT)
    answer.start(200)
    for chunk in chunks:
        answer.body(chunk, more=True)
    if ended:
        answer.body(b"", more=False)
    return answer.total()


def event(document: Any) -> bytes:
    return b"data: " + json.dumps(document, separators=(",", ":")).encode() + b"\n\n"


# Whole answers


@pytest.mark.parametrize(
    ("document", "total"),
    [
        ({"choices": [], "usage": OPENAI}, 25),
        ({"usage": OPENAI, "choices": [{"text": "x" * 10_000}]}, 25),
        ({"usage": {"prompt_tokens": 5, "total_tokens": 5}, "data": []}, 5),  # of embeddings
        ({"usage": {"input_tokens": 5, "output_tokens": 20}}, 25),  # Anthropic's
        ({"usage": {"input_tokens": 5, "output_tokens": 20, "total_tokens": 26}}, 26),  # of the Responses API
        ({"usage": {"completion_tokens": 20}}, 27),
        ({"usage": {}}, 7),
        ({"usage": {"total_tokens": -1, "prompt_tokens": True, "completion_tokens": "9"}}, 7),
    ],
)
def test_a_whole_answer(document: dict[str, Any], total: int) -> None:
    assert whole(document) == total
    assert whole(json.dumps(document, indent=2).encode()) == total


@pytest.mark.parametrize(
    "document",
    [
        {"tokens": [1, 2]},
        {"usage": None},
        {"usage": []},
        {"choices": [{"text": '"usage": {"total_tokens": 1}'}]},  # the model's words
        {"choices": [{"text": 'x\\"usage": {"total_tokens": 1}'}]},
        b'{"usage": {"total_tokens": 1',
        b'{"usage"',
        b"",
    ],
)
def test_an_answer_that_says_nothing(document: Any) -> None:
    assert whole(document) is None


def test_the_words_of_a_model_do_not_hide_the_usage() -> None:
    assert whole({"usage": OPENAI, "choices": [{"text": '"usage": {"total_tokens": 1}'}]}) == 25


@pytest.mark.parametrize("status", [400, 404, 429, 500, 503])
def test_an_error_took_nothing(status: int) -> None:
    assert whole({"error": {}, "usage": OPENAI}, status) == 0


def test_an_answer_that_never_began() -> None:
    assert AnswerTokens(PROMPT).total() is None


# Streams


def test_a_stream_with_its_usage_at_the_end() -> None:
    chunks = [event({"choices": [{"delta": {"content": "x"}}], "usage": None})] * 30
    assert streamed(*chunks, event({"choices": [], "usage": OPENAI}), b"data: [DONE]\n\n") == 25


@pytest.mark.parametrize("size", [1, 2, 7, 50])
def test_a_usage_in_pieces(size: int) -> None:
    text = event({"choices": [], "usage": OPENAI}) + b"data: [DONE]\n\n"
    assert streamed(*(text[at : at + size] for at in range(0, len(text), size))) == 25


def test_the_last_usage_counts() -> None:
    """Engines that say it in each chunk, and Anthropic's API, which says the prompt's at the beginning."""
    assert streamed(*(event({"usage": {**OPENAI, "total_tokens": number}}) for number in (6, 7, 8))) == 8
    start = event({"type": "message_start", "message": {"usage": {"input_tokens": 5, "output_tokens": 0}}})
    assert streamed(start, event({"type": "message_delta", "usage": {"output_tokens": 20}})) == PROMPT + 20


def test_a_stream_without_usage_took_its_events() -> None:
    assert streamed(*([b"data: x\n\n"] * 20)) == PROMPT + 20
    assert streamed(b"data: x\n\n" * 20) == PROMPT + 20


def test_a_stream_that_was_left_took_what_it_gave() -> None:
    assert streamed(*([b"data: x\n\n"] * 3), ended=False) == PROMPT + 3


def test_a_stream_is_not_kept() -> None:
    answer = AnswerTokens(PROMPT)
    for _ in range(100):
        answer.body(b"x" * 1000, more=True)
    assert len(answer._tail) == usage.TAIL


# Documents


def test_a_usage_that_is_too_large_is_none() -> None:
    assert usage_in(json.dumps({"usage": {"x": "y" * usage.LARGEST, "total_tokens": 1}}).encode()) is None


def test_the_total_is_what_is_said() -> None:
    assert tokens_in({"total_tokens": 3, "prompt_tokens": 9}, 1) == 3
    assert tokens_in({"prompt_tokens": 9}, 1) == 9
