"""Where this machine keeps what Enginehouse downloads or builds; nothing else lives here."""

import os
from collections.abc import Mapping
from pathlib import Path


def cache_dir(environ: Mapping[str, str] = os.environ) -> Path:
    """The user's cache folder: `ENGINEHOUSE_CACHE`, else `$XDG_CACHE_HOME/enginehouse`, else `~/.cache/enginehouse`."""
    if chosen := environ.get("ENGINEHOUSE_CACHE"):
        return Path(chosen).expanduser().absolute()
    return Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").absolute() / "enginehouse"
