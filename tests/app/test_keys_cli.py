"""`enginehouse keys`: what it prints, what it writes, and that it shows a secret once and a hash never."""

import json
import stat
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from app import cli
from app.access.keys import KeyRing, Limits, read_key
from app.access.keys_file import parse_keys, read_keys
from app.access.secret import digest


def call(*arguments: object) -> Result:
    return CliRunner().invoke(cli.main, ["keys", *map(str, arguments)], prog_name="enginehouse")


def secret_in(result: Result) -> str:
    [line] = [line for line in result.stdout.splitlines() if line.startswith("  eh-")]
    return line.strip()


def test_a_new_key_is_printed_with_its_record() -> None:
    result = call("new", "ci")
    assert (result.exit_code, result.stderr) == (0, "")
    secret = secret_in(result)
    digested = digest(secret.encode()).hex()
    assert result.stdout == (
        f"The secret, which is shown this once; clients send it as their API key:\n\n  {secret}\n\n"
        f"Put this into the keys file:\n\n- name: ci\n  sha256: {digested}\n"
    )


def test_a_key_that_was_made_is_let_in(tmp_path: Path) -> None:
    path = tmp_path / "keys.yaml"
    secrets = {name: secret_in(call("new", name, "--file", path)) for name in ("one", "two")}
    ring = KeyRing(map(read_key, read_keys(path)))
    for name, secret in secrets.items():
        assert ring.find([(b"authorization", f"Bearer {secret}".encode())]).name == name
        assert secret not in path.read_text()


def test_all_that_can_be_said(tmp_path: Path) -> None:
    path = tmp_path / "keys.yaml"
    said = ["--tenant", "team", "--admin", "--model", "llama-*", "--model", "m"]
    limits = ["--requests-per-minute", 60, "--tokens-per-minute", 1000, "--max-concurrent", 4]
    result = call("new", "ci", *said, *limits, "--file", path)
    assert result.exit_code == 0
    assert f"Added to {path}:" in result.stdout
    [record] = read_keys(path)
    key = read_key(record)
    assert (key.name, key.tenant, key.models, key.admin) == ("ci", "team", ("llama-*", "m"), True)
    assert key.limits == Limits(60, 1000, 4)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_new_key_as_json(tmp_path: Path) -> None:
    document = json.loads(call("new", "ci", "--json").stdout)
    assert document["file"] is None
    [record] = parse_keys(json.dumps([document["record"]]))
    assert (record.name, record.sha256) == ("ci", digest(document["secret"].encode()).hex())
    path = tmp_path / "keys.yaml"
    assert json.loads(call("new", "ci", "--json", "--file", path).stdout)["file"] == str(path)


def test_a_name_that_is_taken_makes_no_secret(tmp_path: Path) -> None:
    path = tmp_path / "keys.yaml"
    call("new", "ci", "--file", path)
    before = path.read_text()
    result = call("new", "ci", "--file", path)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == (f"Error: {path} has a key 'ci'; choose another name, or take that one out first.\n")
    assert path.read_text() == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["a b"], "name: String should match pattern"),
        (["eh-x"], "name: what begins with 'eh-' is a secret, and has no place here."),
        (["ci", "--model", ""], "models[0]: String should have at least 1 character."),
        (["ci", "--max-concurrent", "0"], "Invalid value for '--max-concurrent'"),
        ([], "Missing argument 'NAME'"),
    ],
)
def test_a_wrong_call_is_status_2(arguments: list[str], message: str) -> None:
    result = call("new", *arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "keys.yaml"
    call("new", "ci", "--requests-per-minute", 60, "--model", "m", "--model", "llama-*", "--file", path)
    call("new", "boss", "--admin", "--tenant", "ops", "--file", path)
    call("new", "all", "--tokens-per-minute", 9, "--max-concurrent", 2, "--file", path)
    return path


def test_keys_are_listed(path: Path) -> None:
    result = call("list", path)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.splitlines() == [
        "NAME  TENANT  MODELS      ADMIN  REQUESTS/MIN  TOKENS/MIN  CONCURRENT",
        "ci    ci      m, llama-*  -      60            -           -",
        "boss  ops     none        yes    -             -           -",
        "all   all     all         -      -             9           2",
    ]


def test_keys_are_listed_as_json(path: Path) -> None:
    result = call("list", path, "--json")
    first, *_ = json.loads(result.stdout)["keys"]
    assert first == {
        "name": "ci",
        "tenant": "ci",
        "models": ["m", "llama-*"],
        "admin": False,
        "requests_per_minute": 60,
        "tokens_per_minute": None,
        "max_concurrent": None,
    }
    for record in read_keys(path):
        assert record.sha256 not in result.stdout


def test_a_file_that_is_wrong(tmp_path: Path) -> None:
    path = tmp_path / "keys.yaml"
    path.write_text("- nam: ci\n")
    result = call("list", path)
    assert (result.exit_code, result.stdout) == (1, "")
    assert "line 1: [0].nam: Unknown key 'nam'; did you mean 'name'?" in result.stderr
    result = call("list", tmp_path / "gone")
    assert result.stderr == f"Error: Cannot read {tmp_path / 'gone'}: No such file or directory.\n"
