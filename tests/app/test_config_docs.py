"""docs/configuration.md is made from the code, and says all of it."""

import subprocess
import sys
from pathlib import Path
from typing import Annotated, Literal

import pytest
from pydantic import BaseModel, Field

from app.config import IngressConfig
from app.config_docs import render, rows, table
from app.environment import known_variables
from deployments import registry
from deployments.config import PoolConfig

PAGE = Path(__file__).parents[2] / "docs" / "configuration.md"
SETTINGS = [IngressConfig, PoolConfig, *map(registry.args_type, sorted(registry.ENGINES))]


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text("utf-8") == render(), "run `make docs`"


def test_make_docs_writes_the_page(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    subprocess.run([sys.executable, "-m", "app.config_docs", page], cwd=PAGE.parents[1], check=True, timeout=30)
    assert page.read_text("utf-8") == render()


@pytest.mark.parametrize("model", SETTINGS)
def test_every_key_is_described(model: type[BaseModel]) -> None:
    assert [row[0] for row in rows(model) if not row[-1]] == []


@pytest.mark.parametrize("model", SETTINGS)
def test_every_key_is_on_the_page(model: type[BaseModel]) -> None:
    page = render()
    assert [name for name in model.model_fields if f"\n| `{name}` |" not in page] == []


def test_every_variable_and_engine_is_on_the_page() -> None:
    page = render()
    assert [name for name in known_variables() if f"\n| `{name}` |" not in page] == []
    assert [name for name in registry.ENGINES if f"\n### `engine_args` of `{name}`\n" not in page] == []


class Inner(BaseModel):
    weight: float = Field(1, gt=0, lt=2, description="Share.")


class Outer(BaseModel):
    name: str = Field(min_length=1, description="Its name.")
    inner: dict[str, Inner] = Field({}, description="By name.")
    only: Inner = Field(Inner(), description="The only one.")
    kind: Literal["a", "b"] = Field("a", description="One or other.")
    limit: int | None = Field(None, ge=1, le=9, description="Most.")
    on: bool = False
    tags: Annotated[list[str], Field(min_length=2)] = []


def test_a_row_holds_type_default_bounds_and_meaning() -> None:
    assert list(rows(Outer)) == [
        ("`name`", "string", "required", "at least 1 long", "Its name."),
        ("`inner`", "mapping", "`{}`", "", "By name."),
        ("`inner.<name>.weight`", "number", "`1`", "more than 0, less than 2", "Share."),
        ("`only`", "mapping", "`{}`", "", "The only one."),
        ("`only.weight`", "number", "`1`", "more than 0, less than 2", "Share."),
        ("`kind`", "`a` or `b`", "`a`", "", "One or other."),
        ("`limit`", "integer", "", "at least 1, at most 9", "Most."),
        ("`on`", "true or false", "`false`", "", ""),
        ("`tags`", "list of strings", "`[]`", "at least 2 long", ""),
    ]


def test_a_table_keeps_its_columns() -> None:
    assert table(("A", "B"), [("1", "2 | 3"), ("4", "")]) == "| A | B |\n| --- | --- |\n| 1 | 2 \\| 3 |\n| 4 |  |\n"
