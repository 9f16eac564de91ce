import random
import unicodedata
from collections.abc import Iterable, Sequence

import pytest

from deployments.openai_layer.text import Detokenizer, StopFilter, Tokenizer, token_bytes

TEXTS = [
    "hello world",
    "😀",
    "a 😀😁 b",
    "👩‍👩‍👧‍👦 and 🇩🇪",
    "日本語のテキスト",
    "中文, 한국어, עברית",
    unicodedata.normalize("NFD", "é à ü"),
    "z͎͠a̸l̷g̶o",
    " leading, trailing \n\n\t ",
    "\0\x7f",
    "the quick 𝕓𝕣𝕠𝕨𝕟 fox",
]


def feed_all(tokenizer: Tokenizer, ids: Iterable[int]) -> list[str]:
    detokenizer = Detokenizer(tokenizer)
    return [detokenizer.feed(token_id) for token_id in ids]


@pytest.mark.parametrize("text", TEXTS)
def test_the_pieces_are_the_text(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text)
    pieces = feed_all(tokenizer, ids)
    assert "".join(pieces) == tokenizer.decode(ids) == text


@pytest.mark.parametrize("text", TEXTS)
def test_a_piece_holds_whole_characters_as_soon_as_they_are_whole(tokenizer: Tokenizer, text: str) -> None:
    ids, sent, raw = tokenizer.encode(text), "", b""
    for token_id, piece in zip(ids, feed_all(tokenizer, ids), strict=True):
        raw += token_bytes(tokenizer, token_id)
        sent += piece
        assert sent == raw.decode(errors="ignore")


@pytest.mark.parametrize(("character", "size"), [("é", 2), ("日", 3), ("😀", 4)])
def test_a_character_is_held_back_until_its_last_byte(tokenizer: Tokenizer, character: str, size: int) -> None:
    ids = tokenizer.encode(character)
    assert len(ids) == size
    assert feed_all(tokenizer, ids) == [""] * (size - 1) + [character]


def test_an_unfinished_character_is_never_sent(tokenizer: Tokenizer) -> None:
    assert "".join(feed_all(tokenizer, tokenizer.encode("a😀")[:-1])) == "a"


def test_bytes_that_are_no_characters_are_replaced_once_text_follows(tokenizer: Tokenizer) -> None:
    broken, whole = tokenizer.encode("😀")[:2], tokenizer.encode("ab")
    ids = broken + whole
    assert "".join(feed_all(tokenizer, ids)) == tokenizer.decode(ids) == "\ufffdab"


def test_special_tokens_have_no_text(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("one<|end|> two<|start|>")
    assert 0 in ids
    assert "".join(feed_all(tokenizer, ids)) == "one two"


def test_random_tokens_never_fail_and_never_differ_from_decode(tokenizer: Tokenizer) -> None:
    rng = random.Random(1)
    for _ in range(500):
        ids = [rng.randrange(len(tokenizer)) for _ in range(rng.randrange(1, 12))]
        whole = tokenizer.decode([*ids, *tokenizer.encode("x")], skip_special_tokens=True)
        assert "".join(feed_all(tokenizer, [*ids, *tokenizer.encode("x")])) == whole


def test_streams_of_one_tokenizer_are_apart(tokenizer: Tokenizer) -> None:
    one, two = Detokenizer(tokenizer), Detokenizer(tokenizer)
    smile, letter = tokenizer.encode("😀"), tokenizer.encode("é")
    interleaved = [one.feed(smile[0]), two.feed(letter[0]), one.feed(smile[1]), two.feed(letter[1])]
    assert interleaved == ["", "", "", "é"]
    assert one.feed(smile[2]) + one.feed(smile[3]) == "😀"


def test_byte_fallback_tokens_are_put_together(byte_fallback_tokenizer: Tokenizer) -> None:
    ids = [2, *byte_fallback_tokenizer.encode("é😀"), 3]
    assert "".join(feed_all(byte_fallback_tokenizer, ids)) == "helloé😀h"


def filtered(stops: Sequence[str], chunks: Iterable[str]) -> tuple[list[str], bool]:
    """What a reader gets, piece by piece, and whether a stop string ended it."""
    stop_filter, sent = StopFilter(stops), []
    for chunk in chunks:
        sent.append(stop_filter.feed(chunk))
        if stop_filter.stopped:
            break
    return [*sent, stop_filter.flush()], stop_filter.stopped


def cut(text: str, stops: Sequence[str]) -> str | None:
    """The text before the stop string that is complete first, as slowly and plainly as can be."""
    for end in range(1, len(text) + 1):
        if starts := [end - len(stop) for stop in stops if text[:end].endswith(stop)]:
            return text[: min(starts)]
    return None


def chunked(text: str, rng: random.Random) -> list[str]:
    borders = sorted(rng.randrange(len(text) + 1) for _ in range(rng.randrange(6)))
    return [text[a:b] for a, b in zip([0, *borders], [*borders, len(text)], strict=True)]


def cases(seed: int, count: int) -> Iterable[tuple[str, list[str], random.Random]]:
    """Texts and stop strings over few letters, so that stop strings overlap, repeat, and hold one another."""
    rng = random.Random(seed)
    for _ in range(count):
        text = "".join(rng.choices("ab😀", k=rng.randrange(1, 14)))
        stops = ["".join(rng.choices("ab😀", k=rng.randrange(1, 5))) for _ in range(rng.randrange(1, 4))]
        yield text, stops, rng


def test_the_text_ends_at_the_first_stop_string_however_it_is_cut_into_pieces() -> None:
    stopped_cases = 0
    for text, stops, rng in cases(2, 3000):
        expected = cut(text, stops)
        stopped_cases += expected is not None
        for chunks in ([text], list(text), chunked(text, rng)):
            sent, stopped = filtered(stops, chunks)
            assert ("".join(sent), stopped) == (text if expected is None else expected, expected is not None), (
                text,
                stops,
                chunks,
            )
    assert 500 < stopped_cases < 2900  # both kinds were there


def test_nothing_is_sent_that_begins_a_stop_string_and_nothing_else_is_held_back() -> None:
    for text, stops, rng in cases(3, 3000):
        stop_filter, fed, sent = StopFilter(stops), "", ""
        for chunk in chunked(text, rng):
            fed += chunk
            sent += stop_filter.feed(chunk)
            if stop_filter.stopped:
                break
            beginnings = [at for at in range(len(fed) + 1) if any(stop.startswith(fed[at:]) for stop in stops)]
            assert sent == fed[: min(beginnings)], (text, stops, fed)


@pytest.mark.parametrize(
    ("stops", "chunks", "expected"),
    [
        ([], ["one", " two"], ["one", " two", ""]),
        (["END"], ["one EN", "D two"], ["one ", "", ""]),
        (["END"], ["one EN", "tity"], ["one ", "ENtity", ""]),
        (["END"], ["one EN"], ["one ", "EN"]),
        (["aab"], ["aa", "ab"], ["", "a", ""]),
        (["b", "abc"], ["abc"], ["a", ""]),
        (["END"], ["END"], ["", ""]),
        (["\n\n"], ["a\n", "b\n", "\nc"], ["a", "\nb", "", ""]),
    ],
)
def test_what_is_sent_and_when(stops: list[str], chunks: list[str], expected: list[str]) -> None:
    assert filtered(stops, chunks)[0] == expected


def test_flush_empties_the_filter() -> None:
    stop_filter = StopFilter(["END"])
    assert stop_filter.feed("E") == ""
    assert (stop_filter.flush(), stop_filter.flush()) == ("E", "")


@pytest.mark.parametrize("text", TEXTS)
def test_the_bytes_of_all_tokens_are_the_text_s_bytes(tokenizer: Tokenizer, text: str) -> None:
    assert b"".join(token_bytes(tokenizer, token_id) for token_id in tokenizer.encode(text)) == text.encode()


def test_every_byte_has_its_token(tokenizer: Tokenizer) -> None:
    vocabulary = tokenizer.get_vocab()
    single = [token_id for token, token_id in vocabulary.items() if len(token) == 1]
    assert {token_bytes(tokenizer, token_id) for token_id in single} == {bytes([byte]) for byte in range(256)}


def test_the_bytes_of_a_special_token_are_its_name(tokenizer: Tokenizer) -> None:
    assert token_bytes(tokenizer, 0) == b"<|end|>"


def test_the_bytes_of_byte_fallback_tokens(byte_fallback_tokenizer: Tokenizer) -> None:
    ids = byte_fallback_tokenizer.encode("h😀")
    assert [token_bytes(byte_fallback_tokenizer, token_id) for token_id in ids] == [
        b"h",
        *[bytes([byte]) for byte in "😀".encode()],
    ]


def test_a_real_replacement_character_keeps_its_bytes(byte_fallback_tokenizer: Tokenizer) -> None:
    from tokenizers import AddedToken

    byte_fallback_tokenizer.backend_tokenizer.add_tokens([AddedToken("\ufffd!")])
    assert token_bytes(byte_fallback_tokenizer, len(byte_fallback_tokenizer) - 1) == "\ufffd!".encode()
