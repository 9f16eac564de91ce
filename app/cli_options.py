"""What several commands have: options, and tables."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import click

as_json = click.option("--json", "json_", is_flag=True, help="Print one JSON document instead of text.")
config_option = click.option(
    "--config",
    type=click.Path(path_type=Path),
    default="serve_config.yaml",
    envvar="ENGINEHOUSE_CONFIG",
    show_default=True,
    help="The config that is meant.",
)


def print_table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Rows below their headings, in columns."""
    table = [heads, *rows]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for row in table:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
