from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import cast

import pytest

from deployments.openai_layer.choice import Delta, Usage, deltas, gather
from deployments.openai_layer.text import Detokenizer, Tokenizer
from deployments.openai_layer.tokens import Finish, Sampling, Token
from tests.deployments.openai_layer.fake_engine import FakeEngine


class Run:
    """One choice of a scripted engine."""

    def __init__(self, tokenizer: Tokenizer, answer: str | list[int]) -> None:
        self.ids = tokenizer.encode(answer) if isinstance(answer, str) else answer
        self.engine = FakeEngine(tokenizer, [self.ids])
        self.usage = Usage(prompt_tokens=3)

    async def deltas(self, stops: Sequence[str] = (), max_tokens: int = 100) -> list[Delta]:
        stream = spoken(self.engine, stops, self.usage, max_tokens)
        found = [delta async for delta in stream]
        assert self.engine.running == 0
        return found

    async def whole(self, stops: Sequence[str] = (), max_tokens: int = 100) -> Delta:
        return await gather(spoken(self.engine, stops, self.usage, max_tokens))


def spoken(engine: FakeEngine, stops: Sequence[str], usage: Usage, max_tokens: int = 100) -> AsyncGenerator[Delta]:
    tokens = cast("AsyncGenerator[Token | Finish]", engine.generate([1, 2, 3], Sampling(max_tokens)))
    return deltas(tokens, stops, usage, engine.eos_token_ids, Detokenizer(engine.tokenizer))


def ids_of(delta: Delta) -> list[int]:
    return [token.id for token in delta.tokens]


def test_usage_adds_up() -> None:
    assert Usage(7, 5).document() == {"prompt_tokens": 7, "completion_tokens": 5, "total_tokens": 12}


async def test_an_answer_up_to_its_end(tokenizer: Tokenizer) -> None:
    run = Run(tokenizer, "hello world 😀")
    whole = await run.whole()
    assert (whole.text, whole.finish_reason) == ("hello world 😀", "stop")
    assert ids_of(whole) == run.ids
    assert run.usage == Usage(3, len(run.ids) + 1)  # the end of sequence is a token too
    assert run.engine.calls == [([1, 2, 3], Sampling(100))]


async def test_an_answer_cut_by_max_tokens(tokenizer: Tokenizer) -> None:
    run = Run(tokenizer, "hello world")
    whole = await run.whole(max_tokens=1)
    assert (whole.text, whole.finish_reason) == (tokenizer.decode(run.ids[:1]), "length")
    assert run.usage == Usage(3, 1)


async def test_an_end_of_sequence_as_the_last_allowed_token_is_a_stop(tokenizer: Tokenizer) -> None:
    run = Run(tokenizer, "one")
    assert (await run.whole(max_tokens=len(run.ids) + 1)).finish_reason == "stop"
    assert (await run.whole(max_tokens=len(run.ids))).finish_reason == "length"


async def test_an_empty_answer(tokenizer: Tokenizer) -> None:
    run = Run(tokenizer, [])
    assert await run.deltas() == [Delta(finish_reason="stop")]
    assert run.usage == Usage(3, 1)


async def test_nothing_after_an_end_of_sequence_is_read(tokenizer: Tokenizer) -> None:
    end, *rest = 0, *tokenizer.encode("more")
    run = Run(tokenizer, [*tokenizer.encode("one"), end, *rest])
    assert (await run.whole()).text == "one"
    assert run.engine.generated == len(tokenizer.encode("one")) + 1


@pytest.mark.parametrize("stops", [[], ["never"], ["d 😀!"]])
async def test_the_pieces_make_the_whole(tokenizer: Tokenizer, stops: list[str]) -> None:
    run = Run(tokenizer, "hello world 😀")
    pieces, whole = await run.deltas(stops), await run.whole(stops)
    assert "".join(piece.text for piece in pieces) == whole.text == "hello world 😀"
    assert [token for piece in pieces for token in piece.tokens] == list(whole.tokens)
    assert [start for piece in pieces for start in piece.starts] == list(whole.starts)
    assert [piece.finish_reason for piece in pieces] == [None] * (len(pieces) - 1) + ["stop"]
    assert all(piece.text for piece in pieces[:-1])
    assert pieces[-1].text == ""


@pytest.mark.parametrize("stop", ["w", "wor", " world", "lo wo", "o"])
async def test_a_stop_string_over_token_borders(tokenizer: Tokenizer, stop: str) -> None:
    run = Run(tokenizer, "hello world, hello")
    whole = await run.whole([stop])
    assert (whole.text, whole.finish_reason) == ("hello world, hello".partition(stop)[0], "stop")


async def test_a_stop_string_ends_generation(tokenizer: Tokenizer) -> None:
    letters = [tokenizer.encode(letter)[0] for letter in "abcdefgh"]
    run = Run(tokenizer, letters)
    assert (await run.whole(["cd"])).text == "ab"
    assert run.engine.generated == 4
    assert run.usage == Usage(3, 4)
    assert run.engine.running == 0


async def test_the_tokens_that_spell_a_stop_string_are_hidden(tokenizer: Tokenizer) -> None:
    letters = [tokenizer.encode(letter)[0] for letter in "abcdefgh"]
    pieces = await Run(tokenizer, letters).deltas(["cde"])
    assert [(piece.text, ids_of(piece)) for piece in pieces] == [("a", letters[:1]), ("b", letters[1:2]), ("", [])]


async def test_a_token_is_hidden_until_its_own_text_is_sent(tokenizer: Tokenizer) -> None:
    letters = [tokenizer.encode(letter)[0] for letter in "accde"]
    pieces = await Run(tokenizer, letters).deltas(["cde"])
    assert [(piece.text, ids_of(piece)) for piece in pieces] == [("a", letters[:1]), ("c", letters[1:2]), ("", [])]


async def test_a_token_that_begins_before_a_stop_string_is_shown(tokenizer: Tokenizer) -> None:
    """Its text is cut, but without it there would be no token for what is left of it."""
    the = tokenizer.encode(" the")
    assert len(the) == 1
    whole = await Run(tokenizer, the).whole(["he"])
    assert (whole.text, ids_of(whole)) == (" t", the)


async def test_what_only_began_like_a_stop_string_is_sent_at_the_end(tokenizer: Tokenizer) -> None:
    letters = [tokenizer.encode(letter)[0] for letter in "abc"]
    pieces = await Run(tokenizer, letters).deltas(["bcd"])
    assert [(piece.text, ids_of(piece)) for piece in pieces] == [("a", letters[:1]), ("bc", letters[1:]), ("", [])]


async def test_tokens_come_with_the_text_that_they_begin(tokenizer: Tokenizer) -> None:
    run = Run(tokenizer, "a😀é")
    pieces = await run.deltas()
    expected = [("a", 1, (0,)), ("😀", 4, (1, 1, 1, 1)), ("é", 2, (2, 2)), ("", 0, ())]
    assert [(piece.text, len(piece.tokens), piece.starts) for piece in pieces] == expected
    assert [token_id for piece in pieces for token_id in ids_of(piece)] == run.ids


async def test_tokens_keep_their_log_probabilities(tokenizer: Tokenizer) -> None:
    run = Run(tokenizer, "abc")
    run.engine.top = lambda token_id: ((token_id, -0.5), (1, -1.0))
    whole = await run.whole()
    assert list(whole.tokens) == [
        Token(token_id, -0.5 * (position + 1), ((token_id, -0.5), (1, -1.0)))
        for position, token_id in enumerate(run.ids)
    ]


async def test_tokens_without_text_are_reported_in_the_last_piece(tokenizer: Tokenizer) -> None:
    run = Run(tokenizer, tokenizer.encode("a😀")[:3])
    pieces = await run.deltas(max_tokens=3)
    assert [(piece.text, ids_of(piece)) for piece in pieces] == [("a", run.ids[:1]), ("", run.ids[1:])]
    assert pieces[-1].finish_reason == "length"
    assert pieces[-1].starts == (1, 1)


async def test_special_tokens_are_counted_but_have_no_text(tokenizer: Tokenizer) -> None:
    a, b = (tokenizer.encode(letter)[0] for letter in "ab")
    run = Run(tokenizer, [a, 1, b])
    whole = await run.whole()
    assert (whole.text, ids_of(whole)) == ("ab", [a, 1, b])
    assert run.usage.completion_tokens == 4


async def test_closing_aborts_generation(tokenizer: Tokenizer) -> None:
    run = Run(tokenizer, "hello world hello world")
    async with aclosing(spoken(run.engine, (), run.usage)) as stream:
        await anext(stream)
        assert run.engine.running == 1
    assert run.engine.running == 0
    assert run.engine.generated == run.usage.completion_tokens == 1


async def test_an_engine_s_failure_comes_through(tokenizer: Tokenizer) -> None:
    run = Run(tokenizer, "hello world")
    run.engine.failure, run.engine.fails_after = RuntimeError("out of memory"), 1
    with pytest.raises(RuntimeError, match="out of memory"):
        await run.whole()
    assert run.engine.running == 0


class Speaking(FakeEngine):
    """An engine that gives text and says why it ended."""

    pieces: tuple[Token | Finish, ...] = ()

    async def generate(self, prompt: list[int], sampling: Sampling) -> AsyncGenerator[Token | Finish]:  # type: ignore[override]
        for piece in self.pieces:
            yield piece


@pytest.mark.parametrize(("finish", "tokens"), [(Finish("stop"), 5), (Finish("length"), 5), (Finish("stop", 7), 7)])
async def test_an_engine_that_gives_text(tokenizer: Tokenizer, finish: Finish, tokens: int) -> None:
    engine, usage = Speaking(tokenizer), Usage(3, 10)
    engine.pieces = (Token(-1, text="hé", count=2), Token(-1, text="llo", count=3), finish, Token(-1, text="never"))
    found = [delta async for delta in spoken(engine, ["zzz"], usage)]
    assert ("".join(delta.text for delta in found), found[-1].finish_reason) == ("héllo", finish.reason)
    assert usage.completion_tokens == 10 + tokens


async def test_a_stop_string_ends_given_text_too(tokenizer: Tokenizer) -> None:
    engine = Speaking(tokenizer)
    engine.pieces = (Token(-1, text="one t"), Token(-1, text="wo three"), Finish("length"))
    whole = await gather(spoken(engine, ["two"], Usage(1)))
    assert (whole.text, whole.finish_reason) == ("one ", "stop")
