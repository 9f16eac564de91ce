"""The rivals' environment is whole or not there, and the plot is drawn by whoever has matplotlib."""

import sys
from pathlib import Path

import pytest

from benchmarks.gateway import plot, rivals


@pytest.fixture(autouse=True)
def lines(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    monkeypatch.setenv("ENGINEHOUSE_CACHE", str(tmp_path / "cache"))
    return []


def installs(target: Path) -> None:
    (target / "bin").mkdir(parents=True)


def fails(target: Path) -> None:
    installs(target)
    raise rivals.BuildError("pip could not install rivals.txt")


def test_it_is_built_once(monkeypatch: pytest.MonkeyPatch, lines: list[str]) -> None:
    monkeypatch.setattr(rivals, "_install", installs)
    rivals.build(lines.append)
    monkeypatch.setattr(rivals, "_install", fails)
    rivals.build(lines.append)
    assert len(lines) == 1
    assert lines[0].startswith(f"building {rivals.folder()}")


def test_a_build_that_fails_or_was_killed_leaves_nothing(monkeypatch: pytest.MonkeyPatch, lines: list[str]) -> None:
    monkeypatch.setattr(rivals, "_install", fails)
    with pytest.raises(rivals.BuildError):
        rivals.build(lines.append)
    assert not rivals.folder().exists()
    rivals.folder().mkdir()
    (rivals.folder() / "half").touch()
    monkeypatch.setattr(rivals, "_install", installs)
    rivals.build(lines.append)
    assert [path.name for path in sorted(rivals.folder().iterdir())] == ["bin", "complete"]


def test_another_lock_is_another_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    before = rivals.folder()
    monkeypatch.setattr(rivals, "LOCK", tmp_path / "rivals.txt")
    rivals.LOCK.write_text("ray==2.61.0\n")
    assert rivals.folder() != before
    assert rivals.folder().parent == before.parent == tmp_path / "cache" / "benchmarks"


def test_without_matplotlib_the_plot_says_what_to_install(monkeypatch: pytest.MonkeyPatch, lines: list[str]) -> None:
    monkeypatch.setattr(plot, "find_spec", lambda name: None)
    monkeypatch.setattr(rivals, "_install", fails)
    with pytest.raises(plot.PlotError, match=f"install matplotlib into {sys.prefix}"):
        plot.draw({"rows": {}}, Path("plot.png"), lines.append)


def test_a_drawing_that_fails_is_told(
    monkeypatch: pytest.MonkeyPatch, lines: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(plot, "find_spec", lambda name: "here")
    with pytest.raises(plot.PlotError, match="benchmarks.gateway.drawing .*plot.png ended with status 1"):
        plot.draw({}, tmp_path / "plot.png", lines.append)
    assert "Error" in capfd.readouterr().err
