"""Options that several commands have."""

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
