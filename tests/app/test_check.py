"""A config file is checked: each problem in one sentence, with its place and its line."""

import copy
import os
import random
import string
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from app.check import Checked, Problem, check_file
from deployments import registry
from deployments.engine import PoolModel

ROOT = Path(__file__).parents[2]
ENGINES = ", ".join(sorted(registry.ENGINES))
SHIPPED = [ROOT / "serve_config.yaml", *sorted((ROOT / "cluster").glob("*.yaml"))]

# Each line is there once, so that a test can change it.
BASE = """\
proxy_location: HeadOnly
http_options:
  host: 127.0.0.1
  port: 8000
applications:
  - name: door
    route_prefix: /
    import_path: app.main:build
    deployments:
      - name: Ingress
        user_config:
          models:
            small: {pools: [one]}
          retry_after_s: 3
  - name: one
    route_prefix: null
    import_path: deployments.pool:build
    args:
      engine: transformers
      model: some/model
      engine_args:
        threads: 2
  - name: theirs
    route_prefix: /theirs
    import_path: their.module:build
    args: {anything: [1, {goes: here}]}
    deployments:
      - name: Whatever
        num_replicas: 2
        user_config: {models: 5}
"""
SMALL = "applications[0].deployments[0].user_config.models.small"
Check = Callable[..., Checked]
Edit = tuple[str, str]


@pytest.fixture
def check(tmp_path: Path) -> Check:
    def checked(text: str | bytes, environ: Mapping[str, str] | None = None) -> Checked:
        path = tmp_path / "config.yaml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return check_file(path, environ or {})

    return checked


def changed(*edits: Edit) -> str:
    text = BASE
    for old, new in edits:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.name)
def test_the_shipped_configs_are_right(path: Path) -> None:
    checked = check_file(path, {})
    assert checked.problems == []
    assert checked.ingress is not None
    assert {pool for model in checked.ingress.models.values() for pool in model.pools} == set(checked.pools)


def test_what_was_read(check: Check) -> None:
    checked = check(BASE)
    assert checked.problems == []
    assert checked.file is not None and checked.file.http_options.port == 8000
    assert checked.ingress is not None and checked.ingress.models["small"].pools == ["one"]
    assert list(checked.pools) == ["one"]
    assert checked.pools["one"].pool_model == PoolModel("some/model", "model")


def test_a_problem_as_text() -> None:
    assert str(Problem("a.b", "Wrong.", 3)) == "line 3: a.b: Wrong."
    assert str(Problem("", "Wrong.", 3)) == "line 3: Wrong."
    assert str(Problem("", "Wrong.")) == "Wrong."


# Where a file can't be read


def test_a_missing_file(tmp_path: Path) -> None:
    path = tmp_path / "gone.yaml"
    assert check_file(path, {}).problems == [Problem("", f"Cannot read {path}: No such file or directory.")]


def test_a_directory(tmp_path: Path) -> None:
    assert check_file(tmp_path, {}).problems == [Problem("", f"Cannot read {tmp_path}: Is a directory.")]


def test_a_binary_file(check: Check, tmp_path: Path) -> None:
    reason = "'utf-8' codec can't decode byte 0xff in position 3: invalid start byte"
    assert check(b"a: \xff\xfe").problems == [Problem("", f"Cannot read {tmp_path / 'config.yaml'}: {reason}.")]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", Problem("", "The file is empty.")),
        ("# nothing yet\n", Problem("", "The file is empty.")),
        ("- applications\n", Problem("", "Input should be a valid dictionary.")),
        ("applications\n", Problem("", "Input should be a valid dictionary.")),
        ("a: 1\nb: [", Problem("", "This is not YAML: expected the node content, but found '<stream end>'.", 2)),
        ("a: 1\na: 2", Problem("", "The key 'a' is given twice.", 2)),
        ("a: 2024-13-01", Problem("", "This can't be read: '2024-13-01'.", 1)),
        ("a: \x07", Problem("", "This is not YAML: the character #x0007 is not allowed.", 1)),
        ("a: &a [*a]", Problem("", "This is nested too deep, or holds itself.")),
    ],
)
def test_what_is_no_config(check: Check, text: str, problem: Problem) -> None:
    checked = check(text)
    assert checked.problems == [problem]
    assert (checked.file, checked.ingress, checked.pools) == (None, None, {})


# One thing wrong

NO_MODELS = "The ingress has no models: add 'deployments: [{name: Ingress, user_config: {models: ...}}]'."


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        # Ray Serve's schema
        ("port: 8000", "prot: 8000", "line 4: http_options.prot: Unknown key 'prot'; did you mean 'port'?"),
        ("port: 8000", "port: 65536", "line 4: http_options.port: Input should be less than or equal to 65535."),
        (
            "port: 8000",
            "port: http",
            "line 4: http_options.port: Input should be a valid integer, unable to parse string as an integer.",
        ),
        ("HeadOnly", "Headonly", "line 1: proxy_location: Input should be 'Disabled', 'HeadOnly' or 'EveryNode'."),
        (
            "num_replicas: 2",
            "num_replica: 2",
            "line 29: applications[2].deployments[0].num_replica: Unknown key 'num_replica'; did you mean "
            "'num_replicas'?",
        ),
        ("  - name: one\n    route", "  - route", "line 15: applications[1]: The key 'name' is missing."),
        (
            "  - name: door",
            "  - xyzzy: 1\n    name: door",
            "line 6: applications[0].xyzzy: Unknown key 'xyzzy'; valid: args, autoscaling_policy, deployments, "
            "external_scaler_enabled, host, import_path, logging_config, name, port, route_prefix, runtime_env.",
        ),
        (
            "args: {anything: [1, {goes: here}]}",
            "args: 5",
            "line 26: applications[2].args: Input should be a valid dictionary.",
        ),
        (
            "http_options:\n  host: 127.0.0.1\n  port: 8000",
            "http_options: 5",
            "line 2: http_options: Input should be a valid dictionary.",
        ),
        ("  port: 8000", "  7: 8000", "line 4: http_options.7: The key '7' isn't a string: put it in quotes."),
        ("anything: [", "7: [", "line 26: applications[2].args.7: The key '7' isn't a string: put it in quotes."),
        ("proxy_location:", "on: 1\nproxy_location:", "True: The key 'True' isn't a string: put it in quotes."),
        # Names
        (
            "name: theirs",
            "name: one",
            "line 23: applications[2].name: The name 'one' is taken by an application above; each needs its own.",
        ),
        (
            "route_prefix: /theirs",
            "route_prefix: /",
            "line 24: applications[2].route_prefix: The route_prefix '/' is taken by an application above; each "
            "needs its own.",
        ),
        (
            "app.main:build",
            "app.main:built",
            "line 5: applications: No application has 'import_path: app.main:build', so nothing would answer. "
            "Add the ingress.",
        ),
        # A pool
        (
            "route_prefix: null",
            "route_prefix: /one",
            "line 16: applications[1].route_prefix: A pool is reached through the ingress only: write "
            "'route_prefix: null'.",
        ),
        (
            "    route_prefix: null\n",
            "",
            "line 15: applications[1].route_prefix: A pool is reached through the ingress only: write "
            "'route_prefix: null'.",
        ),
        (
            "engine: transformers",
            "engine: transformer",
            f"line 19: applications[1].args.engine: no engine 'transformer'; there are: {ENGINES}.",
        ),
        (
            "model: some/model",
            "model: some/model\n      modle: 1",
            "line 21: applications[1].args.modle: Unknown key 'modle'; did you mean 'model'?",
        ),
        (
            "model: some/model",
            "model: ''",
            "line 20: applications[1].args.model: String should have at least 1 character.",
        ),
        (
            "threads: 2",
            "thread: 2",
            "line 22: applications[1].args.engine_args.thread: Unknown key 'thread'; did you mean 'threads'?",
        ),
        (
            "threads: 2",
            "threads: 0",
            "line 22: applications[1].args.engine_args.threads: Input should be greater than or equal to 1.",
        ),
        (
            "engine_args:\n        threads: 2",
            "engine_args: [1]",
            "line 21: applications[1].args.engine_args: Input should be a valid dictionary.",
        ),
        (
            "threads: 2",
            "threads: 2\n    deployments: [{name: Pol}]",
            "line 23: applications[1].deployments[0].name: This application has one deployment, 'Pool'; there is "
            "no 'Pol'.",
        ),
        # The ingress
        (
            "{pools: [one]}",
            "{pool: [one], pools: [one]}",
            "line 13: applications[0].deployments[0].user_config.models.small.pool: Unknown key 'pool'; did you "
            "mean 'pools'?",
        ),
        (
            "{pools: [one]}",
            "{}",
            "line 13: applications[0].deployments[0].user_config.models.small: The key 'pools' is missing.",
        ),
        (
            "{pools: [one]}",
            "{pools: one}",
            "line 13: applications[0].deployments[0].user_config.models.small.pools: Input should be a valid list.",
        ),
        (
            "{pools: [one]}",
            "one",
            "line 13: applications[0].deployments[0].user_config.models.small: Input should be a valid dictionary.",
        ),
        (
            "{pools: [one]}",
            "{pools: [one, oen]}",
            "line 13: applications[0].deployments[0].user_config.models.small: The model 'small' names a pool "
            "'oen' that isn't there; did you mean 'one'?",
        ),
        (
            "{pools: [one]}",
            "{pools: [theirs]}",
            "line 13: applications[0].deployments[0].user_config.models.small: The model 'small' names a pool "
            "'theirs' that isn't there; pools: one.",
        ),
        (
            "          retry_after_s: 3",
            "          routes: [{name: r, match: {modle: x}, pools: [one]}]",
            "line 14: applications[0].deployments[0].user_config.routes[0].match.modle: Unknown key 'modle'; did you "
            "mean 'model'?",
        ),
        (
            "          retry_after_s: 3",
            "          routes: [{name: r, canary: {pool: oen, percent: 5}}]",
            "line 14: applications[0].deployments[0].user_config.routes[0]: The route 'r' names a pool 'oen' that "
            "isn't there; did you mean 'one'?",
        ),
        (
            "          retry_after_s: 3",
            "          routes: [{name: r, pools: [one]}, {name: r, engines: [vllm]}]",
            "line 14: applications[0].deployments[0].user_config.routes: two routes are named 'r'; give each a name "
            "of its own.",
        ),
        (
            "          retry_after_s: 3",
            "          admission: {pools: {oen: {max_concurrent: 1}}}",
            "line 14: applications[0].deployments[0].user_config.admission.pools.oen: A limit names a pool 'oen' that "
            "isn't there; did you mean 'one'?",
        ),
        (
            "          retry_after_s: 3",
            "          admission: {models: {smal: {max_concurrent: 1}}}",
            "line 14: applications[0].deployments[0].user_config.admission.models.smal: A limit names a model 'smal' "
            "that isn't there; did you mean 'small'?",
        ),
        (
            "          retry_after_s: 3",
            "          admission: {timeouts: {queue: 1}}",
            "line 14: applications[0].deployments[0].user_config.admission.timeouts.queue: Unknown key 'queue'; did "
            "you mean 'queue_s'?",
        ),
        (
            "          retry_after_s: 3",
            "          aliases: {gpt: smal}",
            "line 14: applications[0].deployments[0].user_config.aliases.gpt: The alias 'gpt' names a model 'smal' "
            "that isn't there; did you mean 'small'?",
        ),
        (
            "          retry_after_s: 3",
            "          aliases: {small: small}",
            "line 14: applications[0].deployments[0].user_config.aliases.small: The alias 'small' has a model's name, "
            "which comes first; take one of them away.",
        ),
        (
            "small: {pools",
            "5: {pools",
            "line 13: applications[0].deployments[0].user_config.models.5: The key '5' isn't a string: put it in "
            "quotes.",
        ),
        (
            "retry_after_s: 3",
            "retry_after_s: soon",
            "line 14: applications[0].deployments[0].user_config.retry_after_s: Input should be a valid integer, "
            "unable to parse string as an integer.",
        ),
        (
            "retry_after_s: 3",
            "retry_after: 3",
            "line 14: applications[0].deployments[0].user_config.retry_after: Unknown key 'retry_after'; did you "
            "mean 'retry_after_s'?",
        ),
        (
            "app.main:build",
            "app.main:build\n    args: {models: {}}",
            "line 9: applications[0].args.models: Unknown key 'models'.",
        ),
        (
            "      - name: Ingress",
            "      - name: Other\n      - name: Ingress",
            "line 10: applications[0].deployments[0].name: This application has one deployment, 'Ingress'; there "
            "is no 'Other'.",
        ),
    ],
)
def test_one_thing_wrong(check: Check, old: str, new: str, problem: str) -> None:
    assert [str(found) for found in check(changed((old, new))).problems] == [problem]


def test_an_ingress_without_models(check: Check) -> None:
    start, end = BASE.index("    deployments:\n      - name: Ingress"), BASE.index("  - name: one")
    assert check(BASE[:start] + BASE[end:]).problems == [Problem("applications[0]", NO_MODELS, 6)]
    empty = "    deployments: [{name: Ingress, user_config: null}]\n"
    assert check(BASE[:start] + empty + BASE[end:]).problems == [Problem("applications[0]", NO_MODELS, 6)]


def test_no_applications(check: Check) -> None:
    sentence = "List should have at least 1 item after validation, not 0."
    assert check("applications: []").problems == [Problem("applications", sentence, 1)]
    assert check("applications:").problems == [Problem("applications", "Input should be a valid list.", 1)]
    assert check("proxy_location: HeadOnly").problems == [Problem("", "The key 'applications' is missing.")]


def test_no_pools_at_all(check: Check) -> None:
    text = changed(("deployments.pool:build", "their.module:pool"))
    sentence = "The model 'small' names a pool 'one' that isn't there; pools: none."
    assert check(text).problems == [Problem(SMALL, sentence, 13)]


def test_vllms_own_arguments_are_vllms_to_judge(check: Check) -> None:
    assert check(changed(("engine: transformers", "engine: vllm"), ("threads: 2", "anything: 2"))).problems == []


def test_adapters_on_an_engine_that_takes_none(check: Check) -> None:
    checked = check(changed(("model: some/model", "model: some/model\n      adapters: {x: /nowhere}")))
    message = "line 21: applications[1].args.adapters: The engine takes no adapters with these engine_args."
    assert [str(problem) for problem in checked.problems] == [message]


def test_adapters_and_folders_that_are_not_there(check: Check, tmp_path: Path) -> None:
    adapters = f"{{x: /nowhere, small: {tmp_path}}}, adapters_folder: /none, engine_args: {{enable_lora: true}}}}"
    pool = "args: {engine: vllm, model: no/such, adapters: " + adapters
    text = BASE.replace(
        "args:\n      engine: transformers\n      model: some/model\n      engine_args:\n        threads: 2", pool
    )
    at = "line 18: applications[1].args."
    assert sorted(str(problem) for problem in check(text).problems) == [
        f"{at}adapters.small: The adapter 'small' has a model's name; give it one of its own.",
        f"{at}adapters.small: The folder '{tmp_path}' has no adapter_config.json, so it is no LoRA adapter.",
        f"{at}adapters.x: There is no folder '/nowhere'.",
        f"{at}adapters_folder: There is no folder '/none'.",
    ]


@pytest.mark.parametrize(("name", "message"), [("model", "has the name of the pool's model"), ("a b", "should match")])
def test_names_that_no_adapter_may_have(check: Check, name: str, message: str) -> None:
    [problem] = check(changed(("model: some/model", f"model: some/model\n      adapters: {{'{name}': f}}"))).problems
    assert message in problem.message


@pytest.mark.parametrize("options", [None, {"port": 8000}])
def test_the_address_is_said(check: Check, options: dict[str, int] | None) -> None:
    document = yaml.safe_load(BASE)
    del document["http_options"]
    if options is not None:
        document["http_options"] = options
    [problem] = check(yaml.safe_dump(document)).problems
    assert problem.message.startswith("Say where to listen, 'http_options: {host: 127.0.0.1}'")
    assert problem.where == ("http_options" if options else "")


def test_two_ingresses(check: Check) -> None:
    """Each is checked with its own models, whichever comes first."""
    second = "{name: Ingress, user_config: {models: {big: {pools: [two]}}}}"
    edit = ("import_path: their.module:build\n    args: {anything: [1, {goes: here}]}", "import_path: app.main:build")
    text = changed(edit, ("      - name: Whatever\n        num_replicas: 2\n        user_config: {models: 5}", ""))
    text = text.rstrip() + f" [{second}]\n"
    problem = Problem(
        "applications[2].deployments[0].user_config.models.big",
        "The model 'big' names a pool 'two' that isn't there; pools: one.",
        26,
    )
    assert check(text).problems == [problem]
    assert check(text.replace("name: Ingress\n", "name: Wrong\n")).problems[-1] == problem


def test_several_at_once_in_the_order_of_the_lines(check: Check) -> None:
    text = changed(
        ("threads: 2", "threads: 0\n        dtype: int8"),
        ("route_prefix: null", "route_prefix: /one"),
        ("{pools: [one]}", "{pools: [gone]}"),
        ("name: theirs", "name: door"),
    )
    assert [(problem.line, problem.where) for problem in check(text).problems] == [
        (13, SMALL),
        (16, "applications[1].route_prefix"),
        (22, "applications[1].args.engine_args.threads"),
        (23, "applications[1].args.engine_args.dtype"),
        (24, "applications[2].name"),
    ]


# The environment


def test_variables_that_nothing_reads(check: Check) -> None:
    environ = {"ENGINEHOUSE_PROT": "8000", "ENGINEHOUSE_PORT": "8000", "PATH": "/bin"}
    sentence = "Unknown environment variable 'ENGINEHOUSE_PROT'; did you mean 'ENGINEHOUSE_PORT'?"
    assert check(BASE, environ).problems == [Problem("", sentence)]
    assert [problem.message for problem in check("", environ).problems] == [sentence, "The file is empty."]


def test_a_variable_that_does_not_fit_is_named(check: Check) -> None:
    sentence = (
        "The environment variable 'ENGINEHOUSE_INGRESS_RETRY_AFTER_S' doesn't fit: "
        "Input should be a valid integer, unable to parse string as an integer."
    )
    assert check(BASE, {"ENGINEHOUSE_INGRESS_RETRY_AFTER_S": "soon"}).problems == [Problem("", sentence)]
    assert check(BASE, {"ENGINEHOUSE_INGRESS_RETRY_AFTER_S": "9"}).problems == []


def test_the_process_environment_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("ENGINEHOUSE_")]:
        monkeypatch.delenv(name)
    assert check_file(SHIPPED[0]).problems == []
    monkeypatch.setenv("ENGINEHOUSE_XYZZY", "1")
    assert len(check_file(SHIPPED[0]).problems) == 1


# Random damage

Place = tuple[str | int, ...]
JUNK: list[Any] = [None, True, 0, -1, 1.5, "", "junk", [], [1], {}, {"junk": 1}, {1: 2}, [[None]], 10**30, float("nan")]
# Keys that are the user's own words.
SHIPPED_DOCUMENTS = [yaml.safe_load(path.read_text()) for path in SHIPPED]
# What a user may call as he likes: the models.
NAMES = {
    name
    for document in SHIPPED_DOCUMENTS
    for application in document["applications"]
    for deployment in application.get("deployments", ())
    for named in ("models", "aliases")
    for name in deployment.get("user_config", {}).get(named, ())
} | {"ray.io/node-group"}


def places(value: Any, at: Place = ()) -> Iterator[Place]:
    """Every key of every mapping, and every item of every list."""
    for part, inside in (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    ):
        yield (*at, part)
        yield from places(inside, (*at, part))


def holder(document: Any, place: Place) -> Any:
    for part in place[:-1]:
        document = document[part]
    return document


def one_letter_off(word: str, chance: random.Random) -> str:
    position = chance.randrange(len(word))
    return word[:position] + chance.choice(string.ascii_lowercase) + word[position + 1 :]


def near(one: str, other: str) -> bool:
    return len(one) == len(other) and sum(a != b for a, b in zip(one, other, strict=True)) == 1


@pytest.mark.parametrize("seed", range(10))
def test_no_damage_makes_it_raise(check: Check, seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(30):
        document = copy.deepcopy(chance.choice(SHIPPED_DOCUMENTS))
        for _ in range(chance.randint(1, 3)):
            place = chance.choice(list(places(document)) or [("applications",)])
            inside = holder(document, place)
            if chance.random() < 0.4:
                del inside[place[-1]]
            else:
                inside[place[-1]] = copy.deepcopy(chance.choice(JUNK))
        for problem in check(yaml.safe_dump(document)).problems:
            assert problem.message.endswith((".", "?")), problem
            assert problem.line is not None or problem.where == "", problem


@pytest.mark.parametrize("seed", range(10))
def test_cut_text_never_makes_it_raise(check: Check, seed: int) -> None:
    chance = random.Random(seed)
    text = SHIPPED[seed % len(SHIPPED)].read_text()
    for _ in range(15):
        start = chance.randrange(len(text))
        check(text[:start] + chance.choice(["", "\t", "]", ": ", "&a *a", "'"]) + text[start + chance.randrange(9) :])


@pytest.mark.parametrize("seed", range(10))
def test_a_key_that_is_one_letter_off_is_named(check: Check, seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(20):
        document = copy.deepcopy(chance.choice(SHIPPED_DOCUMENTS))
        ours = [place for place in places(document) if isinstance(place[-1], str) and place[-1] not in NAMES]
        place = chance.choice([place for place in ours if not engines_own(document, place)])
        inside, right = holder(document, place), str(place[-1])
        wrong = one_letter_off(right, chance)
        if wrong in inside:
            continue
        inside[wrong] = inside.pop(right)
        unknown = [problem.message for problem in check(yaml.safe_dump(document)).problems if wrong in problem.message]
        # "hort" may be meant as "host" or as "port".
        meant = [right, *(key for key in inside if near(key, wrong))]
        assert unknown in [[f"Unknown key '{wrong}'; did you mean '{key}'?"] for key in meant]


def engines_own(document: Any, place: Place) -> bool:
    if "engine_args" not in place or place[-1] == "engine_args":
        return False
    engine: str = holder(document, place[:4])["engine"]
    return engine in ("vllm", "sglang", "tensorrt_llm") and place[4] not in registry.args_type(engine).model_fields


# Access

OPEN = (
    "Whoever reaches '0.0.0.0' could use the models, for it isn't loopback and there are no API keys: set "
    "'access.keys_file' in the ingress's user_config ('enginehouse keys new' makes a key), or say "
    "'access: {anonymous: true}' there."
)
ELSEWHERE = ("host: 127.0.0.1", "host: 0.0.0.0")


def with_access(text: str) -> Edit:
    return ("retry_after_s: 3", f"retry_after_s: 3\n          access: {{{text}}}")


def test_a_server_that_others_reach_says_who_may_use_it(check: Check) -> None:
    assert check(changed(ELSEWHERE)).problems == [Problem("http_options.host", OPEN, 3)]


@pytest.mark.parametrize("access", ["anonymous: true", "keys_file: /no/such/keys.yaml", "keys_env: MY_KEYS"])
def test_a_server_that_says_who_may_use_it(check: Check, access: str) -> None:
    assert check(changed(ELSEWHERE, with_access(access))).problems == []


@pytest.mark.parametrize(
    ("access", "where", "message"),
    [
        ("keys_fil: /keys", ".keys_fil", "Unknown key 'keys_fil'; did you mean 'keys_file'?"),
        (
            "keys_file: keys.yaml",
            ".keys_file",
            "write the whole path, from '/' on: replicas run in folders of their own.",
        ),
        (
            "keys_file: /keys, anonymous: true",
            "",
            "'anonymous: true' lets everybody in without a key; take it or the keys away.",
        ),
    ],
)
def test_access_that_is_wrong(check: Check, access: str, where: str, message: str) -> None:
    at = f"{SMALL.removesuffix('.models.small')}.access{where}"
    assert check(changed(with_access(access))).problems == [Problem(at, message, 15)]


def test_the_keys_file_is_checked_too(check: Check, tmp_path: Path) -> None:
    keys = tmp_path / "keys.yaml"
    text = changed(ELSEWHERE, with_access(f"keys_file: {keys}"))
    keys.write_text("[]")
    assert check(text).problems == []
    keys.write_text("- name: one\n  sha: x\n")
    at = f"{SMALL.removesuffix('.models.small')}.access.keys_file"
    assert check(text).problems == [
        Problem(at, f"In {keys}: line 1: [0]: The key 'sha256' is missing.", 15),
        Problem(at, f"In {keys}: line 2: [0].sha: Unknown key 'sha'; did you mean 'sha256'?", 15),
    ]
