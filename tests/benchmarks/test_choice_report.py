"""The report of the simulation, and its command."""

import json
from dataclasses import replace

from click.testing import CliRunner

from benchmarks.replica_choice import report
from benchmarks.replica_choice.__main__ import main
from benchmarks.replica_choice.cases import CASES, cases
from benchmarks.replica_choice.figures import Figures
from benchmarks.replica_choice.policies import POLICIES

FIGURES = Figures(10, 0.5, 100, 900, 1.0, None, None, 2.5, 3, 400)


def test_the_document_has_medians_of_what_there_is() -> None:
    runs = [FIGURES, replace(FIGURES, prefix_hit_rate=0.7, max_by_mean_p50=1.2), replace(FIGURES, prefix_hit_rate=0.6)]
    found = report.document({"case": {"prefix": runs}})["case"]["prefix"]
    assert (found["prefix_hit_rate"], found["max_by_mean_p50"], found["max_by_mean_p99"]) == (0.6, 1.2, None)


def test_the_table() -> None:
    text = report.table(report.document({"one": {"prefix": [FIGURES], "random": [FIGURES]}, "two": {}}))
    one, two = text.split("\n\n")
    assert one.splitlines()[1].split() == ["prefix", "50.0%", "100", "900", "1.00", "-", "-", "2.5", "3.00", "400"]
    assert len({len(line) for line in one.splitlines()}) == 1 and two.split()[0] == "two"


def test_more_replicas_get_more_to_do() -> None:
    found = cases(replicas=8, ingresses=2, scale=0.5)["plain, high"]
    usual = CASES["plain, high"]
    assert (found.rate, found.replicas, found.ingresses) == (2 * usual.rate, 8, 2)
    assert found.duration_s == usual.duration_s / 2 and found.warm_up_s == usual.warm_up_s / 2


def test_the_command_prints_every_case_and_policy() -> None:
    done = CliRunner().invoke(main, ["--json", "--runs", "1", "--scale", "0.05"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert list(found) == list(CASES) and all(list(rows) == list(POLICIES) for rows in found.values())
