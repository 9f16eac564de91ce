"""The environment variables that Enginehouse reads: these, and no others."""

from collections.abc import Mapping

from app.config import environment_variables
from deployments.errors import unknown_keys

PREFIX = "ENGINEHOUSE_"

# What isn't a key of a config: who reads it, and what for.
PROCESS_VARIABLES: Mapping[str, str] = {
    "ENGINEHOUSE_CACHE": "Folder of models and engine environments; default: `$XDG_CACHE_HOME/enginehouse` "
    "or `~/.cache/enginehouse`.",
    "ENGINEHOUSE_CONFIG": "Config file of `enginehouse serve`, where none is named.",
    "ENGINEHOUSE_HOST": "Address that `enginehouse serve` listens on, instead of the config's `http_options.host`.",
    "ENGINEHOUSE_PORT": "Port that `enginehouse serve` listens on, instead of the config's `http_options.port`.",
}


def known_variables() -> list[str]:
    return [*PROCESS_VARIABLES, *environment_variables().values()]


def unknown_variables(environ: Mapping[str, str]) -> list[str]:
    """A sentence for each variable of ours that nothing reads."""
    ours = sorted(name for name in environ if name.startswith(PREFIX))
    return unknown_keys(ours, known_variables(), "environment variable")
