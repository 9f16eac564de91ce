from random import Random

import pytest

from deployments.openai_layer.text import Detokenizer, token_bytes
from deployments.simulated_tokenizer import END, WORDS, SimulatedTokenizer


@pytest.fixture(scope="module")
def tokenizer() -> SimulatedTokenizer:
    return SimulatedTokenizer()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "hello world",
        " The  quick\n\nbrown fox",
        "naïve 日本語 😀👩‍👩‍👧 Ġ",
        "x=1;\ty",
        "don't McDonald",
        END,
        "<|user|>hi",
        "\x00\x7f",
    ],
)
def test_any_text_comes_back(tokenizer: SimulatedTokenizer, text: str) -> None:
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    special = {tokenizer.encode(token)[0] for token in (END, "<|user|>")}
    if not special & set(ids):
        assert b"".join(token_bytes(tokenizer, token_id) for token_id in ids) == text.encode()


def test_a_stream_of_tokens_is_the_text(tokenizer: SimulatedTokenizer) -> None:
    detokenizer = Detokenizer(tokenizer)
    text = "Morning 😀 日本 again"
    assert "".join(detokenizer.feed(token_id) for token_id in tokenizer.encode(text)) == text


def test_a_common_word_is_a_token_wherever_it_stands(tokenizer: SimulatedTokenizer) -> None:
    random = Random(1)
    for _ in range(50):
        ids = [random.choice(tokenizer.capitals()), *random.choices(tokenizer.words(), k=30)]
        assert tokenizer.encode(tokenizer.decode(ids)) == ids


def test_english_takes_about_a_token_a_word(tokenizer: SimulatedTokenizer) -> None:
    text = "Once upon a time there was a small village by the river, and every morning its people went to the market."
    assert len(text.split()) <= len(tokenizer.encode(text)) < 1.5 * len(text.split())


def test_words_are_distinct_and_whole(tokenizer: SimulatedTokenizer) -> None:
    assert len(set(WORDS)) == len(WORDS) == len(set(tokenizer.words())) == len(set(tokenizer.capitals()))
    assert [tokenizer.decode([token_id]) for token_id in tokenizer.words()] == [f" {word}" for word in WORDS]


def test_a_conversation_has_roles_and_ends_where_the_answer_begins(tokenizer: SimulatedTokenizer) -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert text == "<|system|>Be brief.<|end|>\n<|user|>Hi<|end|>\n<|assistant|>"
    assert tokenizer.encode(text).count(tokenizer.end_id) == 2


def test_the_vocabulary_is_whole(tokenizer: SimulatedTokenizer) -> None:
    assert sorted(tokenizer.get_vocab().values()) == list(range(len(tokenizer)))
    assert tokenizer.convert_ids_to_tokens(tokenizer.end_id) == END
    assert tokenizer.decode([tokenizer.end_id], skip_special_tokens=True) == ""
    assert SimulatedTokenizer().get_vocab() == tokenizer.get_vocab()
