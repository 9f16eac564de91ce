"""The suite's own logic: outcomes, the register, tables, the configuration of the server. No server is started."""

import asyncio
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from app.check import check_file
from deployments import registry
from deployments.engine import ENDPOINTS
from tests.conformance import docs, reading, server_config, table
from tests.conformance.__main__ import choose, main
from tests.conformance.checks import CHECKS
from tests.conformance.running import in_turns, run_url, subject_of
from tests.conformance.subject import Subject
from tests.conformance.suite import Check, NotApplicableError, Result, Run, carry_out, check

PAGE = Path(__file__).parents[2] / "docs" / "conformance.md"
CHAT = "/v1/chat/completions"
CAN: dict[str, Any] = {
    "endpoints": ["chat/completions"],
    "context_length": 100,
    "tools": ["forced"],
    "json_schema": False,
    "logprobs": False,
    "n": True,
    "parts": ["text"],
}
Answer = Callable[[dict[str, Any]], httpx.Response]


def error(status: int, param: str | None, message: str) -> httpx.Response:
    return httpx.Response(status, json={"error": {"message": message, "type": "x", "param": param, "code": None}})


def good(_: dict[str, Any]) -> httpx.Response:
    choice = {"index": 0, "message": {"content": "Hi"}, "finish_reason": "stop"}
    return httpx.Response(200, json={"choices": [choice]})


def subject(answer: Answer, **changes: Any) -> Subject:
    transport = httpx.MockTransport(lambda request: answer(json.loads(request.content)))
    client = httpx.AsyncClient(transport=transport, base_url="http://test")
    return Subject("tiny", "model", client, {**CAN, **changes})


def made(run: Run, needs: tuple[str, ...] = (), may_refuse: tuple[str, ...] = (), timeout_s: float = 5) -> Check:
    return Check("name", "theme", "", run, needs, may_refuse, timeout_s)


async def asks(target: Subject) -> None:
    await target.chat("Hello", response_format={"type": "json_object"})


async def outcome(chosen: Check, target: Subject) -> str:
    return (await carry_out(chosen, target)).outcome


async def test_what_holds_passes() -> None:
    assert await carry_out(made(asks), subject(good)) == Result("pass")


@pytest.mark.parametrize(
    ("param", "message", "expected"),
    [
        ("response_format", "'response_format' is not supported by the tiny engine.", "refused"),
        ("response_format", "'response_format' is not supported.", "fail"),
        ("messages", "'response_format' is not supported by the tiny engine.", "fail"),
        (None, "The tiny engine is out of order.", "fail"),
    ],
)
async def test_a_refusal_names_field_and_engine(param: str | None, message: str, expected: str) -> None:
    target = subject(lambda _: error(400, param, message))
    assert await outcome(made(asks, needs=("json_schema",)), target) == expected
    assert await outcome(made(asks, may_refuse=("response_format",)), target) == expected


async def test_a_refusal_where_the_engine_says_that_it_can_fails() -> None:
    target = subject(lambda _: error(400, "response_format", "Not by the tiny engine."), json_schema=True)
    assert await outcome(made(asks, needs=("json_schema",)), target) == "fail"


async def test_a_refusal_has_the_status_400() -> None:
    target = subject(lambda _: error(422, "response_format", "Not by the tiny engine."))
    assert await outcome(made(asks, needs=("json_schema",)), target) == "fail"


async def test_what_an_engine_lacks_and_takes_fails() -> None:
    result = await carry_out(made(asks, needs=("json_schema",)), subject(good))
    assert result == Result("fail", "the engine doesn't say that it has json_schema, yet answered")


async def test_what_may_be_refused_may_be_honoured() -> None:
    assert await outcome(made(asks, may_refuse=("seed",)), subject(good)) == "pass"


async def test_a_stream_s_refusal_counts() -> None:
    async def streams(target: Subject) -> None:
        await target.chat_stream("Hello", logprobs=True)

    target = subject(lambda _: error(400, "logprobs", "'logprobs' is not supported by the tiny engine."))
    assert await outcome(made(streams, needs=("logprobs",)), target) == "refused"


async def test_the_engine_behind_may_be_the_one_that_refuses() -> None:
    target = subject(lambda _: error(400, "echo", "'echo' is not supported by the transformers engine."))
    assert await outcome(made(asks, may_refuse=("echo",)), replace(target, engine="openai")) == "refused"
    assert await outcome(made(asks, may_refuse=("echo",)), replace(target, engine="vllm")) == "fail"


async def test_a_missing_endpoint_is_refused_as_the_model() -> None:
    target = subject(lambda _: error(400, "model", "The tiny engine doesn't serve 'chat/completions'."), endpoints=[])
    assert await outcome(made(asks, needs=("chat/completions",)), target) == "refused"


def raising(exception: BaseException) -> Run:
    async def run(_: Subject) -> None:
        raise exception

    return run


@pytest.mark.parametrize(
    ("exception", "expected"),
    [
        (AssertionError("three, not four"), Result("fail", "three, not four")),
        (AssertionError(), Result("fail", "an assertion without a message: AssertionError()")),
        (NotApplicableError("no counters"), Result("n/a", "no counters")),
        (KeyError("usage"), Result("fail", "KeyError: 'usage'")),
        (httpx.ReadError("broken"), Result("fail", "ReadError: broken")),
    ],
)
async def test_whatever_goes_wrong_is_a_result(exception: BaseException, expected: Result) -> None:
    assert await carry_out(made(raising(exception)), subject(good)) == expected


async def test_a_check_that_hangs_fails() -> None:
    async def hangs(_: Subject) -> None:
        await asyncio.Event().wait()

    assert await carry_out(made(hangs, timeout_s=0), subject(good)) == Result("fail", "not done within 0 s")


async def test_a_stream_without_its_end_fails() -> None:
    async def streams(target: Subject) -> None:
        await target.chat_stream("Hello")

    body = b'data: {"choices": []}\n\n'
    target = subject(lambda _: httpx.Response(200, content=body, headers={"content-type": "text/event-stream"}))
    assert "not with [DONE]" in (await carry_out(made(streams), target)).reason


@pytest.fixture
def register(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Check]]:
    checks: dict[str, Check] = {}
    monkeypatch.setattr("tests.conformance.suite.CHECKS", checks)
    yield checks


def test_registering(register: dict[str, Check]) -> None:
    async def run(_: Subject) -> None:
        """It holds.

        More of it.
        """

    check("a", needs=["n"])(run)
    check("b", needs=["completions", "n"], timeout_s=1)(run)
    assert [(found.summary, found.needs, found.timeout_s) for found in register.values()] == [
        ("It holds.", ("chat/completions", "n"), 120.0),
        ("It holds.", ("completions", "n"), 1),
    ]
    with pytest.raises(ValueError, match="two checks named 'a'"):
        check("a")(run)


def test_there_are_enough_checks_and_each_says_what_holds() -> None:
    assert len(CHECKS) >= 60
    assert [name for name, found in CHECKS.items() if not found.summary.endswith(".")] == []
    themes = [found.theme for found in CHECKS.values()]
    assert len(set(themes)) == sum(a != b for a, b in zip(themes, ["", *themes], strict=False)), "a theme is split"


ALL = {"endpoints": ENDPOINTS, "tools": ["auto", "forced"], "json_schema": True, "logprobs": True, "n": True}


@pytest.mark.parametrize("status", [200, 400, 500])
@pytest.mark.parametrize("document", [{}, {"choices": []}, {"detail": "no"}, {"error": {"message": "no"}}])
async def test_no_check_passes_on_a_server_that_answers_nonsense(status: int, document: dict[str, Any]) -> None:
    transport = httpx.MockTransport(lambda _: httpx.Response(status, json=document))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:9") as client:
        target = Subject("tiny", "model", client, {**CAN, **ALL})
        outcomes = {name: (await carry_out(found, target)).outcome for name, found in CHECKS.items()}
    assert [name for name, outcome in outcomes.items() if outcome in ("pass", "refused")] == []
    without = {name for name, outcome in outcomes.items() if outcome == "n/a"}
    assert without == {name for name, found in CHECKS.items() if found.theme == "cancel"} | {"the model's own answer"}


RESULTS = {
    "tiny": {"a": Result("pass"), "b": Result("fail", "three, not four")},
    "large": {"a": Result("refused"), "b": Result("n/a", "no counters")},
}
TWO = {name: Check(name, "theme", "", asks, (), (), 1) for name in ("a", "b")}


def test_the_table() -> None:
    assert table.as_text(RESULTS, TWO).splitlines() == [
        "THEME      tiny      large",
        "  a        pass      refused",
        "  b        FAIL      n/a",
        "TOTALS     tiny      large",
        "  pass     1         0",
        "  refused  0         1",
        "  n/a      0         1",
        "  fail     1         0",
        "  checks   2         2",
        "",
        "NOT APPLICABLE",
        "  large: b: no counters",
        "",
        "FAILED",
        "  tiny: b: three, not four",
    ]


def test_the_json() -> None:
    assert json.loads(table.as_json(RESULTS)) == {
        "engines": {"tiny": {"a": "pass", "b": "fail"}, "large": {"a": "refused", "b": "n/a"}}
    }


def test_only_a_fail_fails() -> None:
    assert table.failed(RESULTS)
    assert not table.failed({"large": RESULTS["large"]})


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text("utf-8") == docs.render(), "run `make docs`"


def test_every_check_is_on_the_page() -> None:
    page = docs.render()
    assert [name for name in CHECKS if f"\n| {name} | " not in page] == []


def test_choosing() -> None:
    assert list(choose(())) == list(CHECKS)
    assert {found.theme for found in choose(("TOOLS:",)).values()} == {"tools"}
    assert list(choose(("usage chunk when asked", "one token"))) == ["usage chunk when asked for", "one token"]
    with pytest.raises(Exception, match="no check's name has 'nonesuch' in it"):
        choose(("nonesuch",))


@pytest.mark.parametrize("argv", [["--url", "http://x"], ["--model", "m"], ["--engine", "nonesuch"]])
def test_wrong_options_are_told(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(argv)
    assert ended.value.code == 2
    assert "Usage:" in capsys.readouterr().err


def test_every_engine_has_a_pool_in_the_configuration(tmp_path: Path) -> None:
    engines = list(registry.ENGINES)
    file = server_config.write(engines, 8123, tmp_path)
    assert check_file(file, {}).problems == []
    written = yaml.safe_load(file.read_text())
    assert [pool["args"]["engine"] for pool in written["applications"][1:]] == engines
    models = written["applications"][0]["deployments"][0]["user_config"]["models"]
    assert models == {server_config.model_of(engine): {"pools": [engine]} for engine in engines}
    assert "http://127.0.0.1:8123/v1" in file.read_text()


def test_engines_that_are_not_installed_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    class Absent:
        installed = False

    monkeypatch.setattr("deployments.environments.environment", lambda _: Absent)
    assert server_config.engines_here() == ["transformers", "openai", "simulated", *server_config.STAND_INS]


@pytest.mark.parametrize(
    ("behind", "turns"),
    [
        ("simulated", [[["transformers"]], [["vllm"]], [["openai", "simulated"], ["tgi"]]]),
        ("transformers", [[["transformers"]], [["vllm"]], [["openai"]], [["simulated"], ["tgi"]]]),
    ],
)
def test_engines_that_wait_share_the_machine_and_those_that_compute_do_not(
    behind: str, turns: list[list[list[str]]]
) -> None:
    assert in_turns(["transformers", "vllm", "openai", "simulated", "tgi"], behind) == turns


async def test_a_server_that_says_nothing_is_taken_to_have_all() -> None:
    def answer(_: httpx.Request) -> httpx.Response:
        return httpx.Response(200, json={"id": "m", "max_model_len": 64})

    async with httpx.AsyncClient(transport=httpx.MockTransport(answer), base_url="http://test") as client:
        found = await subject_of(client, "m")
    assert (found.engine, found.context_length, found.witness) == ("m", 64, None)
    assert all(found.has(need) for need in ("embeddings", "auto tools", "json_schema", "n"))


async def test_a_server_that_isnt_there_is_an_error() -> None:
    with pytest.raises(httpx.ConnectError):
        await run_url("http://127.0.0.1:9/v1", "m", TWO, lambda *_: None)


def test_a_string_across_the_border_of_two_pieces() -> None:
    assert reading.cut_across(["ab", "cd", "ef"]) == ("bc", "a")
    assert reading.cut_across(["ab", "cd", "ef"], least=2) == ("de", "abc")
    with pytest.raises(AssertionError, match="no string crosses"):
        reading.cut_across(["aa", "aa"])


def test_a_stream_has_one_finish_reason() -> None:
    chunk: Callable[[str | None], dict[str, Any]] = lambda reason: {"choices": [{"index": 0, "finish_reason": reason}]}  # noqa: E731
    assert reading.streamed_finish([chunk(None), chunk("stop")]) == "stop"
    for reasons in ([None], ["stop", "stop"], ["", "stop"]):
        with pytest.raises(AssertionError, match="finish reasons"):
            reading.streamed_finish(map(chunk, reasons))
