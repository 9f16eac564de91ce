"""Writes docs/conformance.md from the register of checks."""

import sys
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

from tests.conformance.checks import CHECKS
from tests.conformance.suite import Check

INTRO = """# Conformance

Made from the code by `make docs`. `make conformance` runs these {count} checks over every engine that is installed on
this machine, and prints a table: engines across, checks down. A check's outcome is

- `pass`: it holds;
- `refused`: the engine lacks what the check needs, or may refuse a field, and the very request of the check is a 400
  that names the field in `param` and the engine in `message`;
- `n/a`: the check makes no sense for this engine; the reason is below the table;
- `fail`: with the reason below the table, and exit code 1.

| | |
| --- | --- |
| `make conformance` | all engines, one server started for them |
| `make conformance ARGS=--json` | `{{"engines": {{NAME: {{CHECK: OUTCOME}}}}}}` |
| `make conformance ARGS="--engine vllm --check tools"` | one engine, the checks with this in theme or name |
| `make conformance ARGS="--url http://127.0.0.1:8000 --model NAME"` | a server that runs already |"""


def render() -> str:
    parts = [INTRO.format(count=len(CHECKS))]
    for theme, checks in groupby(CHECKS.values(), key=lambda found: found.theme):
        parts += [f"\n## {theme.capitalize()}\n", "| check | what holds | needs |", "| --- | --- | --- |"]
        parts += [_row(found) for found in checks]
    return "\n".join(parts) + "\n"


def _row(found: Check) -> str:
    return f"| {found.name} | {found.summary} | {', '.join(_needs(found))} |"


def _needs(found: Check) -> Iterator[str]:
    """All but chat, which most need; and what may be refused."""
    yield from (need for need in found.needs if need != "chat/completions")
    yield from (f"may refuse `{field}`" for field in found.may_refuse)


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(render(), "utf-8")
