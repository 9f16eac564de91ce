"""A request's way, from its bytes to its pools; and the same told from a config alone."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from app.routing.decide import Caller, PoolView
from app.routing.explain import ConfiguredPools, Example, explain, read_examples
from app.routing.request_type import Seen
from app.routing.route import Routed, route
from app.routing.settings import RoutingConfig
from deployments.config import PoolConfig
from deployments.errors import ApiError

MESSAGES = [{"role": "user", "content": "hi"}]


class Pools:
    def __init__(self, **engines: str) -> None:
        self.engines = engines

    def view(self, pool: str) -> PoolView:
        return PoolView(pool, pool in self.engines, "running", self.engines.get(pool))

    def adapters(self) -> Mapping[str, Sequence[str]]:
        return {"poet": ["v"]}


def config(**more: Any) -> RoutingConfig:
    models = {"m": {"pools": ["v", "t"]}, "n": {"pools": ["t"]}}
    return RoutingConfig.model_validate({"models": models, **more})


def routed(
    settings: RoutingConfig, headers: dict[str, str] | None = None, luck: float = 0.0, key: str = "", **fields: Any
) -> Routed:
    body = json.dumps({"model": "m", "messages": MESSAGES, **fields}).encode()
    lines = [(name.encode(), value.encode()) for name, value in (headers or {}).items()]
    pools = Pools(v="vllm", t="tensorrt_llm")
    return route(settings, "chat/completions", body, lines, pools, Seen(), Caller(key), lambda: luck)


def first(found: Routed) -> str:
    return found.decision.pools[0].name


def test_what_an_answer_s_headers_say() -> None:
    found = routed(config(), stream=True)
    assert (first(found), found.kind, found.adapter) == ("t", "chat", None)
    assert found.told == {
        "x-enginehouse-request-type": "chat",
        "x-enginehouse-reason": "chat: route interactive, tensorrt_llm (streamed)",
    }


def test_a_header_says_the_type() -> None:
    assert first(routed(config(), {"x-request-type": "offline"}, stream=True)) == "v"
    with pytest.raises(ApiError, match="no request type 'x'"):
        routed(config(), {"x-request-type": "x"})


def test_an_alias_is_asked_for_by_its_model_s_name() -> None:
    found = routed(config(aliases={"gpt*": "n"}), model="gpt-9", temperature=1)
    assert (first(found), found.request.model, found.adapter) == ("t", "n", None)
    assert json.loads(found.body) == {"model": "n", "messages": MESSAGES, "temperature": 1}


def test_a_request_without_an_alias_keeps_its_bytes() -> None:
    body = b'{ "model" : "m" }'
    assert route(config(aliases={"x": "n"}), "completions", body, [], Pools(v="vllm"), Seen()).body is body


def test_an_alias_with_weights_keeps_a_conversation_with_its_model() -> None:
    settings = config(aliases={"both": {"m": 1, "n": 1}})
    for name in ("a", "b", "c"):
        models = {routed(settings, {"x-conversation-id": name}, model="both").request.model for _ in range(5)}
        assert len(models) == 1
    spread = {routed(settings, {"x-conversation-id": str(at)}, model="both").request.model for at in range(50)}
    assert spread == {"m", "n"}


def test_an_adapter_goes_to_the_pools_that_have_it() -> None:
    found = routed(config(), model="poet", stream=True)
    assert (first(found), found.adapter) == ("v", "poet")


def test_a_model_that_there_is_not() -> None:
    with pytest.raises(ApiError, match="'x' does not exist. There are: 'm', 'n', 'poet'"):
        routed(config(), model="x")


def test_a_sticky_route_draws_once_for_a_conversation() -> None:
    def draws(sticky: bool) -> set[str]:
        settings = config(routes=[{"name": "r", "pools": {"v": 1, "t": 1}, "sticky": sticky}])
        return {first(routed(settings, luck=luck)) for luck in (0.1, 0.9)}

    assert (draws(sticky=False), len(draws(sticky=True))) == ({"v", "t"}, 1)


def test_a_route_for_a_key() -> None:
    settings = config(routes=[{"name": "r", "match": {"key": "vip-*"}, "pools": ["v"]}])
    assert [first(routed(settings, key=key, stream=True)) for key in ("vip-1", "other", "")] == ["v", "t", "t"]


def pool(engine: str, **more: Any) -> PoolConfig:
    return PoolConfig.model_validate({"engine": engine, "model": "m", **more})


CONFIGURED = {"v": pool("simulated", adapters={}), "t": pool("openai", engine_args={"urls": ["http://127.0.0.1:1/v1"]})}


def explained(*bodies: Any, down: tuple[str, ...] = (), **more: Any) -> list[dict[str, Any]]:
    examples = list(read_examples(json.dumps(list(bodies)).encode()))
    return [each.model_dump() for each in explain(config(**more), examples, ConfiguredPools(CONFIGURED, down))]


def test_a_config_explains_where_a_request_goes() -> None:
    (found,) = explained({"model": "m", "messages": MESSAGES}, down=("t",))
    assert found == {
        "name": "1",
        "request_type": "chat",
        "pool": "v",
        "engine": "simulated",
        "reason": "chat: route everything-else, 1 passed over, simulated (short)",
        "passed_over": [{"pool": "t", "why": "down"}],
        "model": "m",
        "fallbacks": [],
        "shadow": None,
        "error": None,
    }


def test_what_goes_wrong_is_explained() -> None:
    found = explained(
        {"model": "x"},
        {"messages": []},
        {"body": {"model": "m"}, "path": "/v1/chat"},
        {"model": "n"},
        {"body": {"model": "m"}, "headers": {"X-Request-Type": "bulk"}},
        down=("t",),
    )
    assert [each["error"].split(":")[0] for each in found] == ["404", "400", "404", "503", "400"]
    assert (found[3]["pool"], found[3]["passed_over"]) == (None, [{"pool": "t", "why": "down"}])


def test_requests_of_one_file_see_each_other_s_prefixes() -> None:
    long = [{"role": "system", "content": "x" * 2048}, {"role": "user", "content": "?"}]
    found = explained({"model": "m", "messages": long}, {"model": "m", "messages": long})
    assert [each["request_type"] for each in found] == ["chat", "multi_turn"]


@pytest.mark.parametrize(
    ("text", "models"),
    [
        (b'{"model": "a"}', ["a"]),
        (b'[{"model": "a"}, {"body": {"model": "b"}, "key": "k"}]', ["a", "b"]),
        (b'{"model": "a"}\n\n{"model": "b"}\n', ["a", "b"]),
    ],
)
def test_a_file_holds_one_request_or_more(text: bytes, models: list[str]) -> None:
    assert [example.body["model"] for example in read_examples(text)] == models


@pytest.mark.parametrize("text", [b"", b"nonsense", b"[1]", b'{"body": {}, "header": {}}', b'{"body": 1}'])
def test_a_file_that_is_wrong(text: bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        if not list(read_examples(text)):
            raise ValueError("there is none")


def test_an_example_is_a_request_to_chat_unless_it_says_so() -> None:
    assert Example(body={}).path == "/v1/chat/completions"
