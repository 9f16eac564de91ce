"""A file of keys is read, with what is wrong told by line; a key is added to it, and the rest stays as it is."""

import json
import os
import stat
import threading
from pathlib import Path

import pytest

from app.access import keys_file
from app.access.keys_file import KeysError, add_key, parse_keys, read_keys
from app.access.secret import new_secret
from app.access.settings import KeyRecord

A, B, C = "aa" * 32, "bb" * 32, "cc" * 32
BOTH = f"""\
# Ours.
- name: one
  sha256: {A}  # of May
- name: two
  tenant: team
  models: [llama-*, other]
  requests_per_minute: 60
  sha256: {B}
"""
RECORDS = (
    KeyRecord(name="one", sha256=A),
    KeyRecord(name="two", tenant="team", models=("llama-*", "other"), requests_per_minute=60, sha256=B),
)
NEW = KeyRecord(name="new", admin=True, max_concurrent=2, sha256=C)


def problems(text: str) -> list[str]:
    with pytest.raises(KeysError) as raised:
        parse_keys(text)
    assert str(raised.value) == " ".join(raised.value.problems)
    return raised.value.problems


# Reading


def test_yaml_and_json() -> None:
    assert parse_keys(BOTH) == RECORDS
    assert parse_keys(json.dumps([keys_file.as_document(record) for record in RECORDS])) == RECORDS
    assert parse_keys("[]") == ()


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("tenant: team", "tenent: team", "line 5: [1].tenent: Unknown key 'tenent'; did you mean 'tenant'?"),
        ("tenant: team", "scope: team", "line 5: [1].scope: Unknown key 'scope'; valid: admin, max_concurrent, "),
        (f"  sha256: {B}\n", "", "line 4: [1]: The key 'sha256' is missing."),
        ("name: two", "name: one", "line 4: [1].name: The name 'one' is taken by a key above."),
        (B, A, "line 8: [1].sha256: The secret is that of the key 'one' above."),
        ("requests_per_minute: 60", "requests_per_minute: 0", "line 7: [1].requests_per_minute: Input should be "),
        ("tenant: team", "name: other", "line 5: The key 'name' is given twice."),
        ("models: [llama-*, other]", "models: [", "line 8: This is not YAML: "),
    ],
)
def test_what_is_wrong(old: str, new: str, problem: str) -> None:
    assert BOTH.count(old) == 1
    [found] = problems(BOTH.replace(old, new))
    assert found.startswith(problem)


@pytest.mark.parametrize("text", ["", "# nothing yet\n", "keys: []", "one", "3"])
def test_what_is_no_list(text: str) -> None:
    assert problems(text) == ["The keys must be a list: '- name: ...' for each of them."]


def test_no_problem_quotes_a_secret() -> None:
    secret = new_secret()
    for text in (
        f"- {secret}: 1",
        f"- name: one\n  {secret}: {A}",
        f"- name: {secret}\n  sha256: {A}",
        f"- name: one\n  sha256: {secret}",
        f"- {secret}",
        f"- !!int {secret}",
        f"- {{{secret}: 1, {secret}: 2}}",
        f"{secret}: [",
        f"{secret}",
    ):
        assert secret[3:] not in " ".join(problems(text))


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff")
    for path, reason in (
        (tmp_path / "gone", "No such file or directory"),
        (tmp_path, "Is a directory"),
        (tmp_path / "binary", "it isn't UTF-8"),
    ):
        with pytest.raises(KeysError) as raised:
            read_keys(path)
        assert raised.value.problems == [f"Cannot read {path}: {reason}."]


# Adding


def test_a_new_file(tmp_path: Path) -> None:
    path = tmp_path / "keys.yaml"
    old = os.umask(0)
    try:
        add_key(path, NEW)
    finally:
        os.umask(old)
    assert path.read_text() == f"- name: new\n  admin: true\n  max_concurrent: 2\n  sha256: {C}\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert read_keys(path) == (NEW,)


@pytest.mark.parametrize(
    "text",
    [BOTH, BOTH.rstrip("\n"), "".join(f"    {line}\n" for line in BOTH.splitlines())],
    ids=["plain", "no newline at the end", "indented"],
)
def test_what_is_there_stays_as_it_is_written(tmp_path: Path, text: str) -> None:
    path = tmp_path / "keys.yaml"
    path.write_text(text)
    path.chmod(0o644)
    add_key(path, NEW)
    assert path.read_text().startswith(text)
    assert read_keys(path) == (*RECORDS, NEW)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert os.listdir(tmp_path) == ["keys.yaml"]


def test_a_json_file_stays_json(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    path.write_text("[]")
    add_key(path, RECORDS[0])
    add_key(path, NEW)
    assert [record["name"] for record in json.loads(path.read_text())] == ["one", "new"]
    assert read_keys(path) == (RECORDS[0], NEW)


def test_an_empty_file_may_be_added_to(tmp_path: Path) -> None:
    (tmp_path / "keys.yaml").touch()
    add_key(tmp_path / "keys.yaml", NEW)
    assert read_keys(tmp_path / "keys.yaml") == (NEW,)


def test_a_link_stays_one(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "keys.yaml").symlink_to("real/keys.yaml")
    add_key(tmp_path / "keys.yaml", NEW)
    assert (tmp_path / "keys.yaml").is_symlink()
    assert read_keys(tmp_path / "real" / "keys.yaml") == (NEW,)


def refusal(path: Path) -> str:
    """Of adding the key; the file stays as it was."""
    before = path.read_bytes()
    with pytest.raises(KeysError) as raised:
        add_key(path, NEW)
    assert path.read_bytes() == before
    assert os.listdir(path.parent) == [path.name]
    return str(raised.value)


def test_a_name_that_is_there(tmp_path: Path) -> None:
    path = tmp_path / "keys.yaml"
    path.write_text(BOTH.replace("name: two", "name: new"))
    assert refusal(path) == f"{path} has a key 'new'; choose another name, or take that one out first."


def test_a_file_that_is_wrong_is_not_added_to(tmp_path: Path) -> None:
    path = tmp_path / "keys.yaml"
    path.write_text(BOTH.replace("name: two", "nam: two"))
    assert "Unknown key 'nam'" in refusal(path)


def test_a_file_that_cannot_be_added_to(tmp_path: Path) -> None:
    path = tmp_path / "keys.yaml"
    path.write_text(f"[{{name: one, sha256: {A}}}]  # not JSON\n")
    assert refusal(path).endswith("add the record by hand.")


def test_a_write_that_fails_leaves_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "keys.yaml"
    path.write_text(BOTH)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert refusal(path) == f"Cannot write {path}: No space left on device."


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(KeysError, match=r"Cannot write .*: No such file or directory\."):
        add_key(tmp_path / "gone" / "keys.yaml", NEW)


def test_keys_that_are_added_at_once_are_all_there(tmp_path: Path) -> None:
    path = tmp_path / "keys.yaml"
    records = [KeyRecord(name=f"key{number}", sha256=f"{number:064x}") for number in range(12)]
    threads = [threading.Thread(target=add_key, args=(path, record)) for record in records]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {record.name for record in read_keys(path)} == {record.name for record in records}
