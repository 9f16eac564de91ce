"""The command line: what it prints, and its exit status. Nothing is installed, fetched or served."""

import dataclasses
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from app import cli, runner
from app.check import Checked
from app.environment import PROCESS_VARIABLES
from deployments import environment_build, environments
from deployments.environments import InstallError, Listing
from deployments.models import ModelNotFoundError

ROOT = Path(__file__).parents[2]
CONFIG = ROOT / "serve_config.yaml"
ENGINEHOUSE = str(Path(sys.executable).with_name("enginehouse"))
CURL = (
    "curl http://host:1/v1/chat/completions -H 'content-type: application/json' -d '"
    '{"model": "m", "messages": [{"role": "user", "content": "What is the capital of France?"}], "temperature": 0}\''
)

HAVING = "those that have one: sglang, tensorrt_llm, vllm"


@pytest.fixture(autouse=True)
def no_variables_of_ours(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith("ENGINEHOUSE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("ENGINEHOUSE_CACHE", str(tmp_path / "cache"))


def call(*arguments: object) -> Result:
    return CliRunner().invoke(cli.main, [str(argument) for argument in arguments], prog_name="enginehouse")


@pytest.fixture
def wrong(tmp_path: Path) -> Path:
    """A config with two problems."""
    path = tmp_path / "wrong.yaml"
    path.write_text(CONFIG.read_text().replace("port: 8000", "prot: 8000").replace("HeadOnly", "Nowhere"))
    return path


PROBLEMS = [
    {
        "where": "proxy_location",
        "message": "Input should be 'Disabled', 'HeadOnly' or 'EveryNode'.",
        "line": 2,
    },
    {"where": "http_options.prot", "message": "Unknown key 'prot'; did you mean 'port'?", "line": 5},
]


def printed(path: Path) -> str:
    return "".join(f"{path}: line {it['line']}: {it['where']}: {it['message']}\n" for it in PROBLEMS)


# Help


def commands(group: click.Group, names: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    yield names, group
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from commands(command, (*names, name))
        else:
            yield (*names, name), command


COMMANDS = dict(commands(cli.main))


def test_the_commands_there_are() -> None:
    assert {" ".join(names) for names, command in COMMANDS.items() if not isinstance(command, click.Group)} == {
        "check",
        "capabilities",
        "serve",
        "doctor",
        "build-engine",
        "engines list",
        "keys new",
        "keys list",
        "engines install",
        "models prepare",
        "route explain",
    }


@pytest.mark.parametrize("names", COMMANDS, ids=" ".join)
@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_help_shows_every_argument(names: tuple[str, ...], flag: str) -> None:
    result = call(*names, flag)
    assert result.exit_code == 0
    usage = result.stdout.splitlines()[0]
    for parameter in COMMANDS[names].params:
        if isinstance(parameter, click.Option):
            assert parameter.opts[0] in result.stdout
        else:
            assert (parameter.metavar or parameter.human_readable_name).upper() in usage
    command = COMMANDS[names]
    for name, inner in command.commands.items() if isinstance(command, click.Group) else ():
        assert f"  {name} " in result.stdout
        assert inner.get_short_help_str(limit=20).rstrip(".") in result.stdout


def test_every_variable_that_is_read_is_a_known_one() -> None:
    variables = {str(parameter.envvar) for command in COMMANDS.values() for parameter in command.params}
    assert variables - {"None"} == PROCESS_VARIABLES.keys() - {"ENGINEHOUSE_CACHE"}


def test_the_version() -> None:
    assert call("--version").stdout == f"enginehouse, version {metadata.version('enginehouse')}\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ["chek"],
        ["check"],
        ["check", CONFIG, "--jsn"],
        ["engines", "install"],
        ["models", "prepare"],
        ["serve", CONFIG, "--port", "0"],
    ],
)
def test_a_wrong_call_is_status_2(arguments: list[object]) -> None:
    result = call(*arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "Error: " in result.stderr


# check


def test_a_config_that_is_right() -> None:
    result = call("check", CONFIG)
    summary = "1 model(s): smollm2-135m-instruct; 1 pool(s): smollm2 on transformers"
    assert (result.exit_code, result.stdout, result.stderr) == (0, f"{CONFIG}: OK: {summary}\n", "")


def test_every_model_and_pool_is_named() -> None:
    result = call("check", ROOT / "cluster" / "cpu-engines.yaml")
    models = "smollm2-transformers, smollm2-vllm, smollm2-sglang"
    summary = f"{models}; 3 pool(s): transformers on transformers, vllm on vllm, sglang on sglang"
    assert result.stdout.endswith(f": OK: 3 model(s): {summary}\n")


def test_capabilities_as_a_table() -> None:
    result = call("capabilities", "--config", ROOT / "cluster" / "cpu-engines.yaml")
    head, *lines = result.stdout.splitlines()
    assert (result.exit_code, head.split()[:3]) == (0, ["MODEL", "ENGINE", "CONTEXT"])
    assert [line.split()[:2] for line in lines] == [
        ["smollm2-sglang", "sglang"],
        ["smollm2-transformers", "transformers"],
        ["smollm2-vllm", "vllm"],
    ]


def test_capabilities_as_json() -> None:
    result = call("capabilities", "--config", CONFIG, "--json")
    [model] = json.loads(result.stdout)["models"]
    assert (model["id"], model["engines"]) == ("smollm2-135m-instruct", ["transformers"])
    [pool] = model["pools"]
    assert pool["endpoints"][:2] == ["chat/completions", "completions"]
    assert (pool["tools"], pool["json_schema"], pool["logprobs"], pool["lora"]) == ([], False, True, False)


def test_capabilities_of_a_config_that_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text("applications: []\n")
    result = call("capabilities", "--config", tmp_path / "bad.yaml")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "applications" in result.stderr


def test_a_config_that_is_right_as_json() -> None:
    result = call("check", CONFIG, "--json")
    assert (result.exit_code, result.stderr) == (0, "")
    assert json.loads(result.stdout) == {"file": str(CONFIG), "ok": True, "problems": []}


def test_problems_go_to_stderr(wrong: Path) -> None:
    result = call("check", wrong)
    assert (result.exit_code, result.stdout, result.stderr) == (1, "", printed(wrong))


def test_problems_as_json(wrong: Path) -> None:
    result = call("check", wrong, "--json")
    assert (result.exit_code, result.stderr) == (1, "")
    assert json.loads(result.stdout) == {"file": str(wrong), "ok": False, "problems": PROBLEMS}


SCRIPT = """
import atexit, sys
from app.cli import main
atexit.register(lambda: print([name for name in ("ray", "torch", "transformers", "vllm") if name in sys.modules]))
main()
"""


def test_check_is_fast_for_it_imports_neither_ray_nor_an_engine() -> None:
    config = ROOT / "cluster" / "cpu-engines.yaml"
    took = []
    for _ in range(3):  # other work on the machine may slow one down
        began = time.monotonic()
        command = [sys.executable, "-c", SCRIPT, "check", str(config)]
        child = subprocess.run(command, capture_output=True, text=True, timeout=30)
        took.append(time.monotonic() - began)
        assert (child.returncode, child.stderr) == (0, "")
        assert child.stdout.splitlines()[-1] == "[]"
        if took[-1] < 2:
            return
    pytest.fail(f"took {took} s")


# engines


LISTINGS = [
    Listing("transformers", "built in", "5.0", True, True, "/here"),
    Listing("vllm", "cpu", None, True, False, "/there"),
    Listing("vllm", "cuda", "0.1", False, False, "/elsewhere"),
]


def test_engines_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environments, "describe", lambda: LISTINGS)
    result = call("engines", "list")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.splitlines() == [
        "ENGINE        VARIANT   VERSION  INSTALLED  WHERE",
        "transformers  built in  5.0      yes        /here",
        "vllm          cpu       -        no         /there",
    ]


def test_engines_are_listed_as_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environments, "describe", lambda: LISTINGS)
    result = call("engines", "list", "--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout) == {"engines": [dataclasses.asdict(listing) for listing in LISTINGS]}


def test_the_engines_of_this_machine() -> None:
    """Unlike the above: with nothing replaced."""
    listed = json.loads(call("engines", "list", "--json").stdout)["engines"]
    assert {(item["engine"], item["here"]) for item in listed} >= {("transformers", True), ("vllm", True)}


def test_an_engine_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def install(engine: str, report: environments.Report) -> environments.Environment:
        asked.append(engine)
        report(f"{engine}: a step")
        return environments.environment(engine, "cpu")

    monkeypatch.setattr(environment_build, "install", install)
    folder = environments.environment("vllm", "cpu").folder
    result = call("engines", "install", "vllm")
    assert (result.exit_code, result.stdout) == (0, f"vllm: installed in {folder}\n")
    assert result.stderr == "  vllm: a step\n"
    result = call("engines", "install", "vllm", "--json")
    built = {"engine": "vllm", "variant": "cpu", "path": str(folder)}
    assert json.loads(result.stdout) == {"engines": [built]}
    assert asked == ["vllm", "vllm"]


@pytest.mark.parametrize(
    ("engine", "message"),
    [
        ("vlm", f"engine 'vlm' has no environment ({HAVING}); did you mean 'vllm'?"),
        ("transformers", "the transformers engine runs in Enginehouse's own environment; it has no other"),
    ],
)
def test_an_engine_that_cannot_be_installed(engine: str, message: str) -> None:
    result = call("engines", "install", engine, "--json")
    assert (result.exit_code, result.stdout, result.stderr) == (1, "", f"enginehouse: {message}\n")


# models


def checkpoint(folder: Path) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    return folder


def test_a_local_model_is_only_checked(tmp_path: Path) -> None:
    one, two = checkpoint(tmp_path / "one"), checkpoint(tmp_path / "two")
    result = call("models", "prepare", one, two)
    assert (result.exit_code, result.stdout, result.stderr) == (0, f"{one}: {one}\n{two}: {two}\n", "")
    result = call("models", "prepare", one, two, "--json")
    assert json.loads(result.stdout) == {"models": {str(one): str(one), str(two): str(two)}}


@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_a_model_that_is_missing(tmp_path: Path, flags: list[str]) -> None:
    gone = tmp_path / "gone"
    result = call("models", "prepare", gone, *flags)
    message = f"Model '{gone}': {gone} doesn't exist. Name a folder that holds config.json and safetensors."
    assert (result.exit_code, result.stdout, result.stderr) == (1, "", f"enginehouse: {message}\n")


def test_the_revision_is_passed_on(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "one")
    result = call("models", "prepare", folder, "--revision", "v2")
    assert result.exit_code == 1
    assert "which has no revisions; drop 'v2'" in result.stderr


# serve


class Ran:
    """What stands in for runner.run."""

    def __init__(self, names: list[str], status: int = 0, error: Exception | None = None) -> None:
        self._names, self._status, self._error = names, status, error
        self.called: dict[str, Any] = {}

    def __call__(self, config: Path, checked: Checked, *, report: Any, ready: Any, **options: Any) -> int:
        self.called = {"config": config, **options}
        report("a step")
        ready("http://host:1", self._names)
        if self._error is not None:
            raise self._error
        return self._status


def test_serve_says_what_to_try(monkeypatch: pytest.MonkeyPatch) -> None:
    ran = Ran(["m", "n"], status=3)
    monkeypatch.setattr(runner, "run", ran)
    result = call("serve", CONFIG, "--host", "::1", "--port", "8001", "--address", "ray://x")
    assert (result.exit_code, result.stderr) == (3, "  a step\n")
    assert result.stdout == f"Serving m, n on http://host:1 (Ctrl-C stops). Try:\n\n  {CURL}\n\n"
    assert ran.called == {"config": CONFIG, "host": "::1", "port": 8001, "address": "ray://x"}


def test_serve_says_what_to_try_where_there_are_keys(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    access = "access: {keys_file: /no/such/keys.yaml}\n          models:"
    text = CONFIG.read_text()
    assert text.count("models:") == 1
    config.write_text(text.replace("models:", access))
    monkeypatch.setattr(runner, "run", Ran(["m"]))
    result = call("serve", config)
    curl = CURL.replace(" -H 'content", ' -H "authorization: Bearer $API_KEY" -H \'content')
    assert result.stdout == f"Serving m on http://host:1 (Ctrl-C stops). Try:\n\n  {curl}\n\n"


def test_serve_without_models(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "run", Ran([]))
    assert call("serve", CONFIG).stdout == "Serving no model yet on http://host:1 (Ctrl-C stops).\n"


def test_serve_as_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "run", Ran(["m"]))
    result = call("serve", CONFIG, "--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout) == {"url": "http://host:1", "models": ["m"]}


def test_serve_takes_what_is_not_said_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    ran = Ran([])
    monkeypatch.setattr(runner, "run", ran)
    for name, value in {"CONFIG": CONFIG, "HOST": "0.0.0.0", "PORT": 8002}.items():
        monkeypatch.setenv(f"ENGINEHOUSE_{name}", str(value))
    assert call("serve").exit_code == 0
    assert ran.called == {"config": CONFIG, "host": "0.0.0.0", "port": 8002, "address": "local"}


def test_serve_reads_serve_config_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    ran = Ran([])
    monkeypatch.setattr(runner, "run", ran)
    monkeypatch.chdir(ROOT)
    assert call("serve").exit_code == 0
    assert ran.called == {"config": Path("serve_config.yaml"), "host": None, "port": None, "address": "local"}


@pytest.mark.parametrize("kind", [runner.RunError, InstallError, ModelNotFoundError])
def test_serve_says_why_it_cannot(monkeypatch: pytest.MonkeyPatch, kind: type[Exception]) -> None:
    monkeypatch.setattr(runner, "run", Ran([], error=kind("The reason.")))
    result = call("serve", CONFIG)
    assert (result.exit_code, result.stderr) == (1, "  a step\nenginehouse: The reason.\n")


def test_serve_refuses_a_config_with_problems(monkeypatch: pytest.MonkeyPatch, wrong: Path) -> None:
    ran = Ran([])
    monkeypatch.setattr(runner, "run", ran)
    result = call("serve", wrong)
    assert (result.exit_code, result.stdout, result.stderr) == (1, "", printed(wrong))
    assert ran.called == {}


def test_serve_on_a_port_that_is_taken() -> None:
    """In a process of its own, as a user runs it."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        command = [ENGINEHOUSE, "serve", str(CONFIG), "--port", str(port)]
        child = subprocess.run(command, capture_output=True, text=True, timeout=30)
    reason = f"Cannot listen on 127.0.0.1:{port}: Address already in use. Choose another with --port."
    assert (child.returncode, child.stdout, child.stderr) == (1, "", f"enginehouse: {reason}\n")


REQUEST = '{"model": "smollm2-135m-instruct", "messages": [{"role": "user", "content": "hi"}], "stream": true}'


def test_a_route_is_explained(tmp_path: Path) -> None:
    (tmp_path / "request.json").write_text(REQUEST)
    result = call("route", "explain", tmp_path / "request.json", "--config", CONFIG)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.splitlines() == [
        "model         smollm2-135m-instruct",
        "request type  chat",
        "pool          smollm2  (transformers)",
        "reason        chat: route interactive, transformers (streamed)",
    ]


def test_a_route_is_explained_as_json() -> None:
    arguments = ["route", "explain", "-", "--config", str(CONFIG), "--json", "--down", "smollm2"]
    result = CliRunner().invoke(cli.main, arguments, input=f"{REQUEST}\n{REQUEST}\n")
    assert result.exit_code == 1
    found = json.loads(result.stdout)
    assert [(each["pool"], each["passed_over"]) for each in found] == [
        (None, [{"pool": "smollm2", "why": "down"}]),
        (None, [{"pool": "smollm2", "why": "down"}]),
    ]


@pytest.mark.parametrize(
    ("text", "options", "words"),
    [
        ("{", (), "request.json: not JSON"),
        ('{"body": {}, "headrs": {}}', (), "request.json: headrs: Extra inputs"),
        (REQUEST, ("--down", "b"), "has no pool 'b'; it has: smollm2."),
    ],
)
def test_a_request_that_can_not_be_explained(tmp_path: Path, text: str, options: tuple[str, ...], words: str) -> None:
    (tmp_path / "request.json").write_text(text)
    result = call("route", "explain", tmp_path / "request.json", "--config", CONFIG, *options)
    assert result.exit_code != 0 and result.stdout == ""
    assert words in result.stderr
