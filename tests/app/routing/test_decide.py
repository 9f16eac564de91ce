"""Where a request goes."""

import json
from collections import Counter
from typing import Any

import pytest
from pydantic import ValidationError

from app.routing.decide import Caller, Decision, Draw, PassedOver, PoolView, decide, matches, pick, steady
from app.routing.request import Request, read_request
from app.routing.settings import DEFAULT_ROUTES, EVERYDAY, RequestType, RouteConfig, RouteMatch
from deployments import registry
from deployments.engine import Capabilities, Endpoint

ABLE = Capabilities(endpoints=("chat/completions", "completions"), tools=("auto",), context_length=1000)
TOOLS: dict[str, Any] = {"tools": [{"type": "function", "function": {"name": "f"}}]}


def request(endpoint: Endpoint = "chat/completions", **fields: Any) -> Request:
    return read_request(endpoint, json.dumps({"model": "m", **fields}).encode())


def pool(name: str, engine: str | None = None, *, ready: bool = True, can: Capabilities | None = ABLE) -> PoolView:
    return PoolView(name, ready, "running" if ready else "updating", engine or name, can)


def routes(*documents: dict[str, Any]) -> list[RouteConfig]:
    return [RouteConfig.model_validate({"name": f"r{at}", **document}) for at, document in enumerate(documents)]


def decided(
    *pools: PoolView,
    rules: list[RouteConfig] | None = None,
    kind: RequestType = "chat",
    asked: Request | None = None,
    draws: dict[Draw, float] | None = None,
    others: tuple[PoolView, ...] = (),
) -> Decision:
    every = {each.name: each for each in (*pools, *others)}
    return decide(
        asked or request(stream=True),
        kind,
        pools,
        rules or [],
        Caller(),
        lambda route, draw: (draws or {}).get(draw, 0.999),
        lambda name: every.get(name) or PoolView(name, False, "not deployed"),
    )


def order(decision: Decision) -> list[str]:
    return [each.name for each in decision.pools]


ENGINES = tuple(pool(engine) for engine in reversed(EVERYDAY))


@pytest.mark.parametrize(
    ("kind", "stream", "first"),
    [
        ("chat", True, ["tensorrt_llm", "triton", "vllm", "sglang", "tgi", "openai", "simulated", "transformers"]),
        ("chat", False, list(EVERYDAY)),
        ("multi_turn", True, ["sglang", "vllm", "tensorrt_llm", "triton"]),
        ("multi_turn", False, ["sglang", "vllm"]),
        ("batch", False, list(EVERYDAY)),
        ("offline", False, list(EVERYDAY)),
        ("embedding", False, list(EVERYDAY)),
    ],
)
def test_the_default_rules_are_those_of_engine_choice(kind: RequestType, stream: bool, first: list[str]) -> None:
    found = decided(*ENGINES, kind=kind, asked=request(stream=stream))
    assert order(found)[: len(first)] == first
    assert found.passed_over == ()


def test_every_engine_has_its_place() -> None:
    assert set(EVERYDAY) == set(registry.ENGINES)
    assert matches(DEFAULT_ROUTES[-1].match, request(), "offline", Caller())  # whatever is asked, a rule is for it


def test_pools_of_one_engine_keep_the_order_of_the_configuration() -> None:
    found = decided(pool("b", "vllm"), pool("a", "vllm"), pool("c", "sglang"))
    assert order(found) == ["b", "a", "c"]
    assert found.reason == "chat: route interactive, vllm"


def test_a_pool_that_is_not_ready_is_passed_over() -> None:
    found = decided(pool("trt", "tensorrt_llm", ready=False), pool("v", "vllm"))
    assert order(found) == ["v"]
    assert found.passed_over == (PassedOver("trt", "updating"),)
    assert found.reason == "chat: route interactive, 1 passed over, vllm"


def test_a_pool_of_which_nothing_is_known_comes_last_and_is_asked() -> None:
    unknown = PoolView("new", True, "running")
    assert order(decided(unknown, pool("t", "transformers"))) == ["t", "new"]
    alone = decided(unknown)
    assert (order(alone), alone.reason) == (["new"], "chat: route interactive, engine unknown")


def test_a_pool_that_can_not_honour_the_request_is_passed_over() -> None:
    able, unable = pool("able", "vllm"), pool("unable", "tensorrt_llm", can=Capabilities(("chat/completions",)))
    found = decided(unable, able, asked=request(stream=True, **TOOLS))
    assert (order(found), found.passed_over) == (["able"], (PassedOver("unable", "doesn't honour tools"),))
    assert order(decided(unable, able)) == ["unable", "able"]


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        (request("embeddings"), "doesn't serve embeddings"),
        (request(**TOOLS, tool_choice="required"), "doesn't honour forced_tools"),
        (request(n=2, logprobs=True), "doesn't honour logprobs; doesn't honour n"),
        (request(prompt="x" * 4004), "has a context of 1000 tokens"),
    ],
)
def test_where_no_pool_can_the_first_one_says_so(asked: Request, why: str) -> None:
    both = decided(pool("a", "vllm"), pool("b", "sglang"), asked=asked)
    assert order(both) == ["a", "b"]
    able = pool("c", "transformers", can=None)
    assert decided(pool("a", "vllm"), able, asked=asked).passed_over == (PassedOver("a", why),)


def test_where_no_pool_is_ready_there_is_none() -> None:
    found = decided(pool("a", ready=False), pool("b", ready=False))
    assert (order(found), [over.pool for over in found.passed_over]) == ([], ["a", "b"])


@pytest.mark.parametrize(
    ("match", "fits"),
    [
        ({}, True),
        ({"model": "m"}, True),
        ({"model": ["x", "?"]}, True),
        ({"model": "m?"}, False),
        ({"request_type": "chat"}, True),
        ({"request_type": ["batch", "offline"]}, False),
        ({"stream": True}, True),
        ({"stream": False}, False),
        ({"min_prompt_tokens": 2}, True),
        ({"min_prompt_tokens": 3}, False),
        ({"max_prompt_tokens": 2}, True),
        ({"max_prompt_tokens": 1}, False),
        ({"key": "k*"}, True),
        ({"key": "other"}, False),
        ({"tenant": "acme"}, True),
        ({"tenant": "acme2"}, False),
        ({"needs": "tools"}, True),
        ({"needs": ["tools", "n"]}, False),
        ({"model": "m", "stream": False}, False),
    ],
)
def test_what_a_route_is_for(match: dict[str, Any], fits: bool) -> None:
    asked = request(stream=True, prompt="x" * 8, **TOOLS)
    assert matches(RouteMatch.model_validate(match), asked, "chat", Caller("key-1", "acme")) is fits


def test_a_route_with_a_key_is_not_for_those_without() -> None:
    assert not matches(RouteMatch(key=("k",)), request(), "chat", Caller())
    assert not matches(RouteMatch(tenant=("acme",)), request(), "chat", Caller())


A, B, C = pool("a", "vllm"), pool("b", "vllm"), pool("c", "vllm")


def test_a_route_s_pools_come_first_and_the_others_after_them() -> None:
    found = decided(A, B, C, rules=routes({"pools": ["c", "a"]}))
    assert (order(found), found.reason) == (["c", "a", "b"], "chat: route r0, vllm")
    assert order(decided(A, B, C, rules=routes({"pools": ["c"], "only": True}))) == ["c"]
    assert order(decided(A, B, C, rules=routes({"pools": ["other"], "only": True}))) == []
    assert order(decided(A, pool("s", "sglang"), rules=routes({"engines": ["sglang"], "only": True}))) == ["s"]


def test_the_first_route_that_matches_counts() -> None:
    rules = routes({"match": {"model": "x"}, "pools": ["a"]}, {"pools": ["b"]}, {"pools": ["c"]})
    assert order(decided(A, B, C, rules=rules))[0] == "b"


def test_weights_draw_the_first_pool_and_leave_the_others_as_they_are() -> None:
    rules = routes({"pools": {"a": 90, "b": 10}})
    drawn = [decided(A, B, C, rules=rules, draws={"weights": point}) for point in (0, 0.899, 0.9, 0.99)]
    assert [order(each) for each in drawn] == [["a", "b", "c"], ["a", "b", "c"], ["b", "a", "c"], ["b", "a", "c"]]
    assert drawn[3].reason == "chat: route r0, weight 10 of 100, vllm"


def test_a_pool_that_is_down_has_no_weight() -> None:
    rules = routes({"pools": {"a": 90, "b": 10}})
    found = decided(pool("a", ready=False), B, rules=rules, draws={"weights": 0})
    assert (order(found), found.reason) == (["b"], "chat: route r0, weight 10 of 10, vllm")


def test_a_canary_gets_its_share() -> None:
    rules = routes({"canary": {"pool": "new", "percent": 5}})
    new = pool("new", "vllm")
    hit = decided(A, rules=rules, draws={"canary": 0.0499}, others=(new,))
    assert (order(hit), hit.reason) == (["new", "a"], "chat: canary of route r0, vllm")
    miss = decided(A, rules=rules, draws={"canary": 0.05}, others=(new,))
    assert (order(miss), miss.reason) == (["a"], "chat: route interactive, vllm")
    down = decided(A, rules=rules, draws={"canary": 0}, others=(pool("new", ready=False),))
    assert (order(down), down.passed_over) == (["a"], (PassedOver("new", "updating"),))


def test_a_canary_that_is_one_of_the_model_s_pools_is_not_asked_twice() -> None:
    rules = routes({"pools": ["a"], "canary": {"pool": "b", "percent": 100}})
    assert order(decided(A, B, rules=rules, draws={"canary": 0.5})) == ["b", "a"]


def test_a_shadow_gets_copies_of_its_share() -> None:
    rules = routes({"shadow": {"pool": "next", "percent": 50}})
    assert decided(A, rules=rules, draws={"shadow": 0.49}, others=(pool("next"),)).shadow == "next"
    assert decided(A, rules=rules, draws={"shadow": 0.5}, others=(pool("next"),)).shadow is None
    assert decided(A, rules=rules, draws={"shadow": 0}, others=(pool("next", ready=False),)).shadow is None
    assert order(decided(A, rules=rules, draws={"shadow": 0}, others=(pool("next"),))) == ["a"]


def test_picking_by_weight_is_fair() -> None:
    drawn = Counter(pick({"a": 7, "b": 2, "c": 1}, point / 1000) for point in range(1000))
    assert drawn == {"a": 700, "b": 200, "c": 100}
    assert pick({"a": 1, "b": 1}, 1 - 2**-53) == "b"


def test_a_conversation_s_draws_are_steady_and_spread() -> None:
    assert steady("r", "canary", "c1") == steady("r", "canary", "c1")
    assert len({steady(*each) for each in (("r", "canary", "c1"), ("r", "shadow", "c1"), ("s", "canary", "c1"))}) == 3
    points = [steady("r", "weights", str(number)) for number in range(2000)]
    assert all(0 <= point < 1 for point in points)
    assert 0.45 < sum(point < 0.5 for point in points) / 2000 < 0.55


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ({}, "a route has 'pools', 'engines', 'canary' or 'shadow'"),
        ({"pools": ["a"], "engines": ["vllm"]}, "not both"),
        ({"engines": ["vlm"]}, "no engine 'vlm'"),
        ({"canary": {"pool": "a", "percent": 101}}, "less than or equal to 100"),
        ({"pools": {"a": 0}}, "greater than 0"),
        ({"only": True, "shadow": {"pool": "a", "percent": 1}}, "'only' goes with"),
        ({"pools": ["a"], "match": {"modle": "m"}}, "Extra inputs"),
        ({"pools": ["a"], "match": {"request_type": "bulk"}}, "Input should be 'chat'"),
        ({"pools": ["a"], "name": "two words"}, "pattern"),
    ],
)
def test_a_route_that_is_wrong(document: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        routes(document)
