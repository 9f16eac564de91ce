"""Every test is in one tier, every tier is a command, and what is told of them is right."""

import json
import re
from pathlib import Path

import psutil
import pytest

from tests.tiers import running, table
from tests.tiers.parts import ALWAYS, TIERS, Part, chosen, rotating
from tests.tiers.running import ROOT, Done

FILES = sorted(path.relative_to(ROOT) for path in (ROOT / "tests").rglob("test_*.py"))
PARTS = [part for tier in TIERS.values() for part in tier.parts]


def paths(part: Part) -> list[str]:
    """What a part has pytest look at: by default, what pytest's own settings name."""
    named = [word for word in part.command if word.startswith("tests/")]
    settings = (ROOT / "pyproject.toml").read_text().partition("testpaths = [")[2].partition("]")[0]
    return named or re.findall(r'"(tests/\w+)"', settings)


@pytest.mark.parametrize(
    "file", sorted(path.relative_to(ROOT) for path in (ROOT / "tests").rglob("test_*.py")), ids=str
)
def test_a_test_s_file_is_in_one_tier(file: Path) -> None:
    inside = {
        tier
        for tier, found in TIERS.items()
        for part in found.parts
        if part.is_pytest and any(file == Path(path) or Path(path) in file.parents for path in paths(part))
    }
    assert len(inside) == 1


def test_a_part_names_only_what_is_there() -> None:
    assert [path for part in PARTS if part.is_pytest for path in paths(part) if not (ROOT / path).exists()] == []


def test_a_name_is_of_one_part_or_tier() -> None:
    names = [*(part.name for part in PARTS), *TIERS]
    assert len(names) == len(set(names))


def test_each_tier_is_a_command_and_in_the_docs() -> None:
    makefile, readme = (ROOT / "Makefile").read_text(), (ROOT / "docs" / "tests.md").read_text()
    for tier in TIERS:
        command = "test" if tier == "live" else f"test-{tier}"
        assert f"\n{command}: " in makefile
        assert f"`make {command}`" in readme
    assert "@$(TIERS) fast live $(ARGS)" in makefile


def test_each_part_that_is_not_always_run_has_its_turn() -> None:
    rest = [part.name for name, tier in TIERS.items() if name not in ALWAYS for part in tier.parts]
    assert sorted(rotating(number).name for number in range(100, 100 + len(rest))) == sorted(rest)


def test_tiers_and_parts_are_chosen_by_name() -> None:
    found = [(tier, part.name) for tier, part in chosen(("cluster", "mypy"))]
    assert found == [("cluster", "placement"), ("cluster", "example configs"), ("fast", "mypy")]
    with pytest.raises(KeyError, match="nothing"):
        chosen(("nothing",))


DONE = [
    Done("fast", "mypy", seconds=18.4),
    Done("fast", "unit", tests=5000, skipped=2, seconds=60, memory_gb=1.26),
    Done("engines", "vllm", status=1, tests=153, failed=1, seconds=200, memory_gb=5, failures=["a::b"]),
    Done("engines", "sglang", why="no sglang here"),
]


def test_the_table() -> None:
    assert table.as_text(DONE).splitlines() == [
        "| tier    | part   | tests | skipped | failed | seconds    | most memory, GB |",
        "| ------- | ------ | ----- | ------- | ------ | ---------- | --------------- |",
        "|         | mypy   |       |         |        | 18         | 0.0             |",
        "|         | unit   | 5000  | 2       |        | 60         | 1.3             |",
        "| fast    |        | 5000  | 2       | 0      | 78 of 120  | 1.3             |",
        "|         | vllm   | 153   |         | 1      | 200        | 5.0             |",
        "|         | sglang |       |         |        | 0          | 0.0             |",
        "| engines |        | 153   | 0       | 1      | 200 of 900 | 5.0             |",
        "vllm: exit status 1; a::b",
        "sglang: not run: no sglang here",
    ]
    document = json.loads(table.as_json(DONE))
    assert (document["good"], [part["name"] for part in document["parts"]][2]) == (False, "vllm")


def test_a_part_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "test_it.py"
    file.write_text(
        "import pytest\ndef test_good(): pass\ndef test_bad(): assert False\n@pytest.mark.skip\ndef test_not(): pass\n"
    )
    part = Part("it", ("pytest", "-q", "-p", "no:cacheprovider", str(file)))
    done = running.run("fast", part, [], lambda _: None)
    assert (done.status, done.tests, done.skipped, done.failed, done.good) == (1, 3, 1, 1, False)
    assert done.failures[0].endswith("test_it::test_bad")
    done = running.run("fast", part, ["-k", "good"], lambda _: None)
    assert (done.status, done.tests, done.failed, done.good) == (0, 1, 0, True)
    assert running.run("fast", part, ["-k", "nothing"], lambda _: None).good


def test_an_engine_that_is_not_here_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ENGINEHOUSE_CACHE", str(tmp_path))
    told: list[str] = []
    done = running.run("engines", Part("x", ("pytest",), engines=("vllm",)), [], told.append)
    assert (done.good, done.tests, done.why) == (True, 0, "no vllm here; run 'enginehouse engines install vllm'")
    assert done.why in told[0]


def test_it_waits_for_memory_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    free = iter([1.0, 2.0, 5.0])
    memory = psutil.virtual_memory()
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory._replace(available=int(next(free) * running.GB)))
    monkeypatch.setattr(running, "AGAIN_S", 0)
    told: list[str] = []
    running.wait_for_memory(Part("x", ("pytest",), free_gb=4), told.append)
    assert len(told) == 1
    assert "x waits: it needs 4 GB of memory, 1.0 are free; most have " in told[0]


def test_what_hangs_is_interrupted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "test_it.py"
    file.write_text("import time\ndef test_it(): time.sleep(600)\n")
    monkeypatch.setattr(running, "MOST_S", 3)
    done = running.run("fast", Part("it", ("pytest", "-p", "no:cacheprovider", str(file))), [], lambda _: None)
    assert not done.good
