"""The simulation of replica choice: what it keeps to, and that production's policies reach in it what they are for."""

import itertools
from dataclasses import replace

import pytest

from benchmarks.replica_choice.figures import Figures, figures
from benchmarks.replica_choice.policies import POLICIES
from benchmarks.replica_choice.simulate import Case, Outcome, Simulation
from benchmarks.replica_choice.workload import FEW, MANY, PLAIN, Conversation, conversations, tokens

SHORT = Case(MANY, rate=4.0, duration_s=90, warm_up_s=45)


def run(case: Case, policy: str) -> Outcome:
    return Simulation(case, POLICIES[policy]).run()


@pytest.fixture(scope="module")
def shared() -> dict[str, Figures]:
    return {policy: figures(run(SHORT, policy)) for policy in ("least_outstanding", "prefix")}


@pytest.fixture(scope="module")
def plain() -> dict[str, Figures]:
    case = replace(SHORT, shape=PLAIN, rate=18.0)
    return {policy: figures(run(case, policy)) for policy in ("power_of_two", "least_outstanding", "prefix")}


def test_a_conversation_s_prompt_begins_with_the_one_before_and_its_answer() -> None:
    conversation: Conversation = next(conversations(FEW, seed=1))
    asks = [ask for ask, _ in conversation.turns()]
    assert len(asks) >= 2
    for before, after in itertools.pairwise(asks):
        assert list(after.blocks[: len(before.blocks)]) == list(before.blocks)
        known = [*before.prompt, *before.answer]
        assert list(after.prompt[: len(known)]) == known


def test_prompts_of_plain_traffic_have_nothing_in_common() -> None:
    asks = [next(conversation.turns())[0] for conversation in itertools.islice(conversations(PLAIN, seed=1), 20)]
    blocks = [block for ask in asks for block in ask.blocks]
    assert len(set(blocks)) == len(blocks) > 20


def test_a_token_is_four_characters() -> None:
    assert len(tokens("abcdefgh")) == 2 and tokens("abcdefgh")[0] == tokens("abcd")[0]


def test_all_that_is_asked_is_answered_in_order_and_the_same_each_time() -> None:
    outcome, again = (run(SHORT, "prefix") for _ in range(2))
    assert figures(outcome) == figures(again)
    assert outcome.served and all(each.asked_s < each.first_s <= each.ended_s for each in outcome.served)
    assert all(each.asked_s >= SHORT.warm_up_s for each in outcome.served)
    assert len(outcome.loads) == SHORT.duration_s - SHORT.warm_up_s


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("ingresses", [1, 3])
def test_counts_are_back_at_zero_in_the_end(policy: str, ingresses: int) -> None:
    simulation = Simulation(replace(SHORT, duration_s=20, warm_up_s=5, ingresses=ingresses), POLICIES[policy])
    simulation.run()
    assert not any(simulation._loads)
    assert all(not any(each.loads.of(simulation._names, 1e9)) for each in simulation._policies)


def test_every_policy_gets_the_same_conversations() -> None:
    runs = [run(SHORT, policy) for policy in ("random", "prefix")]
    first, second = ({tuple(each.ask.blocks) for each in outcome.served} for outcome in runs)
    assert len(first & second) > 0.9 * max(len(first), len(second))


def test_prefix_hits_twice_as_often_where_a_replica_can_t_keep_all(shared: dict[str, Figures]) -> None:
    least, prefix = shared["least_outstanding"], shared["prefix"]
    assert prefix.prefix_hit_rate > 1.9 * least.prefix_hit_rate > 0.3
    assert (prefix.ttft_ms_p50 or 0) < 0.5 * (least.ttft_ms_p50 or 0)
    assert (prefix.ttft_ms_p99 or 0) < (least.ttft_ms_p99 or 0)
    assert (prefix.max_by_mean or 9) <= 1.25 and (prefix.max_by_mean_p50 or 9) <= 1.25


def test_prefix_costs_plain_traffic_nothing(plain: dict[str, Figures]) -> None:
    least, prefix = plain["least_outstanding"], plain["prefix"]
    assert prefix.prefix_hit_rate == 0
    assert prefix.requests_per_s > 0.99 * least.requests_per_s
    assert (prefix.ttft_ms_p99 or 9e9) < 1.1 * (least.ttft_ms_p99 or 0)
    assert (prefix.max_by_mean_p99 or 9) <= 1.25


def test_least_outstanding_keeps_a_better_balance_than_power_of_two(plain: dict[str, Figures]) -> None:
    assert (plain["least_outstanding"].max_by_mean_p99 or 9) < (plain["power_of_two"].max_by_mean_p99 or 0)
