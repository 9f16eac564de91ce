"""Keys are read again when their file changes, and only then; what can't be read leaves the last good ones."""

import logging
import os
from pathlib import Path

import pytest

from app.access import sources
from app.access.keys import KeyRing
from app.access.keys_file import read_keys
from app.access.secret import digest
from app.access.settings import AccessConfig, KeyRecord
from app.access.sources import KeySources


def record(name: str, secret: str | None = None) -> str:
    return f"- {{name: {name}, sha256: {digest((secret or name).encode()).hex()}}}\n"


def names(ring: KeyRing | None) -> set[str] | None:
    return None if ring is None else set(ring.names())


def errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.message for each in caplog.records if each.levelno == logging.ERROR]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "keys.yaml"
    path.write_text(record("one"))
    return path


def write(path: Path, text: str) -> None:
    """As an editor does that writes a new file: its number changes, even within one tick of the clock."""
    new = path.with_suffix(".new")
    new.write_text(text)
    new.replace(path)


def of_file(path: Path) -> KeySources:
    return KeySources(AccessConfig(keys_file=str(path)), {})


def test_a_file_is_read_at_once(path: Path) -> None:
    assert names(of_file(path).ring) == {"one"}


def test_a_change_is_seen_at_the_next_look(path: Path) -> None:
    found = of_file(path)
    write(path, record("one") + record("two"))
    assert names(found.ring) == {"one"}
    found.look()
    assert names(found.ring) == {"one", "two"}
    write(path, "[]")
    found.look()
    assert names(found.ring) == set()


def test_a_change_in_place_is_seen(path: Path) -> None:
    found = of_file(path)
    with path.open("a") as file:
        file.write(record("two"))
    found.look()
    assert names(found.ring) == {"one", "two"}


def test_a_file_that_has_not_changed_is_not_read(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = list[Path]()

    def reading(path: Path) -> tuple[KeyRecord, ...]:
        read.append(path)
        return read_keys(path)

    monkeypatch.setattr(sources, "read_keys", reading)
    found = of_file(path)
    ring = found.ring
    found.look()
    found.look()
    assert (read, found.ring) == ([path], ring)
    os.utime(path, (1, 1))
    found.look()
    assert read == [path, path]


@pytest.mark.parametrize("text", ["- {name: ", "", record("one") * 2, "- {nam: one}"])
def test_a_file_that_becomes_wrong_leaves_the_last_keys(
    path: Path, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    found = of_file(path)
    write(path, text)
    for _ in range(3):
        found.look()
    assert names(found.ring) == {"one"}
    [error] = errors(caplog)
    assert error.startswith(f"the keys of {path} can't be read: ") and error.endswith(" The last ones stay.")
    write(path, record("two"))
    found.look()
    assert names(found.ring) == {"two"}


def test_a_file_that_goes_away(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    found = of_file(path)
    path.unlink()
    for _ in range(3):
        found.look()
    assert names(found.ring) == {"one"}
    assert errors(caplog) == [
        f"the keys of {path} can't be read: Cannot read {path}: No such file or directory. The last ones stay."
    ]


def test_what_breaks_again_is_said_again(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    found = of_file(path)
    for text in ("", record("one"), ""):
        write(path, text)
        found.look()
    assert len(errors(caplog)) == 2


def test_a_file_that_is_not_there_yet(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "keys.yaml"
    found = of_file(path)
    found.look()
    assert found.ring is None
    [error] = errors(caplog)
    assert error.endswith(" It has none yet.")
    write(path, record("one"))
    found.look()
    assert names(found.ring) == {"one"}


def test_a_variable() -> None:
    found = KeySources(AccessConfig(keys_env="MY_KEYS"), {"MY_KEYS": record("one") + record("two")})
    found.look()
    assert names(found.ring) == {"one", "two"}


@pytest.mark.parametrize(
    ("environ", "error"),
    [
        ({}, "the environment variable MY_KEYS, which is to hold keys, isn't set"),
        ({"MY_KEYS": "eh-a-secret-that-is-long"}, "the keys of the environment variable MY_KEYS can't be read: The "),
    ],
)
def test_a_variable_that_is_wrong(
    environ: dict[str, str], error: str, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert KeySources(AccessConfig(keys_env="MY_KEYS"), environ).ring is None
    [found] = errors(caplog)
    assert found.startswith(error) and "a-secret" not in found
    both = KeySources(AccessConfig(keys_env="MY_KEYS", keys_file=str(path)), environ)
    assert names(both.ring) == {"one"}


def test_a_file_and_a_variable(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What both have is the file's."""
    both = AccessConfig(keys_env="MY_KEYS", keys_file=str(path))
    found = KeySources(both, {"MY_KEYS": record("two") + record("three")})
    assert names(found.ring) == {"one", "two", "three"}
    assert errors(caplog) == []
    found = KeySources(both, {"MY_KEYS": record("one", "other") + record("other", "one") + record("two")})
    assert names(found.ring) == {"one", "two"}
    assert found.ring is not None and found.ring.find([(b"x-api-key", b"one")]).name == "one"
    [error] = errors(caplog)
    assert error == "keys of the environment that the file has, too, by name or by secret, are left out"


def test_a_variable_stays_where_the_file_is_wrong(path: Path) -> None:
    path.write_text("")
    found = KeySources(AccessConfig(keys_env="MY_KEYS", keys_file=str(path)), {"MY_KEYS": record("two")})
    assert names(found.ring) == {"two"}
