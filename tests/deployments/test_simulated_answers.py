from math import exp

import pytest

from deployments.openai_layer.tokens import Sampling, Token
from deployments.simulated_answers import Author, falls_on
from deployments.simulated_tokenizer import SimulatedTokenizer

PROMPT = [1, 2, 3]
GREEDY = Sampling(100, temperature=0)


@pytest.fixture(scope="module")
def tokenizer() -> SimulatedTokenizer:
    return SimulatedTokenizer()


@pytest.fixture
def author(tokenizer: SimulatedTokenizer) -> Author:
    return Author(tokenizer, None, 20)


def test_an_answer_has_so_many_tokens_and_an_end(author: Author, tokenizer: SimulatedTokenizer) -> None:
    ids = author.answer(PROMPT, GREEDY).ids
    assert len(ids) == 20
    assert ids.index(tokenizer.end_id) == 19
    text = tokenizer.decode(list(ids[:-1]))
    assert text[0].isupper()
    assert len(text.split()) == 19


@pytest.mark.parametrize("max_tokens", [1, 2, 19, 20, 21])
def test_a_cut_answer_is_the_beginning_of_the_whole(author: Author, max_tokens: int) -> None:
    whole = author.answer(PROMPT, GREEDY).ids
    assert author.answer(PROMPT, Sampling(max_tokens, temperature=0)).ids == whole[:max_tokens]


def test_the_shortest_answer_is_its_end(tokenizer: SimulatedTokenizer) -> None:
    assert Author(tokenizer, None, 1).answer(PROMPT, GREEDY).ids == (tokenizer.end_id,)
    assert Author(tokenizer, "", 9).answer(PROMPT, GREEDY).ids == (tokenizer.end_id,)


def test_a_given_text_is_the_answer_to_everything(tokenizer: SimulatedTokenizer) -> None:
    author = Author(tokenizer, "Yes 😀", 20)
    for prompt in ([1], [2]):
        assert tokenizer.decode(list(author.answer(prompt, Sampling(50)).ids)) == "Yes 😀<|end|>"


def test_the_prompt_decides_at_temperature_0(author: Author, tokenizer: SimulatedTokenizer) -> None:
    again = Author(tokenizer, None, 20)
    assert author.answer(PROMPT, GREEDY) == again.answer(PROMPT, Sampling(100, temperature=0, seed=9))
    assert len({author.answer([n], GREEDY).ids for n in range(100)}) == 100


def test_the_seed_decides_too_at_another_temperature(author: Author, tokenizer: SimulatedTokenizer) -> None:
    def ids(seed: int) -> tuple[int, ...]:
        return author.answer(PROMPT, Sampling(100, seed=seed)).ids

    assert ids(1) == ids(1)
    assert len({ids(seed) for seed in range(-50, 50)}) == 100
    assert ids(1) != author.answer(PROMPT, GREEDY).ids


def test_without_a_seed_each_answer_is_another_and_a_run_can_be_repeated(
    author: Author, tokenizer: SimulatedTokenizer
) -> None:
    answers = [author.answer(PROMPT, Sampling(100)).ids for _ in range(50)]
    assert len(set(answers)) == 50
    again = Author(tokenizer, None, 20)
    assert [again.answer(PROMPT, Sampling(100)).ids for _ in range(50)] == answers


@pytest.mark.parametrize("count", [0, 1, 2, 20])
def test_probabilities_make_sense(author: Author, count: int) -> None:
    answer = author.answer(PROMPT, GREEDY)
    for index, chosen in enumerate(answer.ids):
        token = answer.token(index, count)
        assert (token.id, len(token.top)) == (chosen, count)
        assert token.logprob < 0
        assert token == answer.token(index, count)
        if count:
            assert token.top[0] == (chosen, token.logprob)
            assert sorted(token.top, key=lambda pair: -pair[1]) == list(token.top)
            assert len({token_id for token_id, _ in token.top}) == count
            assert sum(exp(logprob) for _, logprob in token.top) <= 1 + 1e-9


def test_a_token_s_own_probability_does_not_depend_on_how_many_are_asked_for(author: Author) -> None:
    answer = author.answer(PROMPT, GREEDY)
    assert len({answer.token(3, count).logprob for count in (0, 1, 5, 20)}) == 1
    assert len({answer.token(index, 0).logprob for index in range(20)}) == 20
    assert answer.token(3, None) == Token(answer.ids[3])


@pytest.mark.parametrize("rate", [0.0, 0.1, 0.5, 1.0])
def test_a_fault_falls_on_its_share_of_prompts(rate: float) -> None:
    hit = [falls_on([n], "error", rate, 1) for n in range(2000)]
    assert abs(sum(hit) / 2000 - rate) < 0.03
    assert hit == [falls_on([n], "error", rate, 1) for n in range(2000)]


@pytest.mark.parametrize("other", [("hang", 1), ("error", 2)])
def test_faults_and_seeds_fall_on_other_prompts(other: tuple[str, int]) -> None:
    fault, seed = other
    assert [falls_on([n], "error", 0.5, 1) for n in range(99)] != [falls_on([n], fault, 0.5, seed) for n in range(99)]
