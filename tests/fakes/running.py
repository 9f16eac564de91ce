"""The stand-ins that a config's pools need: servers that run as processes of their own while a test does."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import yaml

from tests.waiting import wait_until

ENGINES = {"tgi": "/health", "triton": "/v2/health/ready"}  # each has a module of its name here; its health check
ROOT = Path(__file__).parents[2]


@contextmanager
def servers_of(config: Path) -> Iterator[None]:
    """Serve every URL of the config's pools on one of `ENGINES`, until the block ends."""
    pools = [application["args"] for application in yaml.safe_load(config.read_text())["applications"][1:]]
    urls = [(pool["engine"], url) for pool in pools if pool["engine"] in ENGINES for url in pool["engine_args"]["urls"]]
    processes = [
        subprocess.Popen([sys.executable, "-m", f"tests.fakes.{engine}", "--port", str(urlsplit(url).port)], cwd=ROOT)
        for engine, url in urls
    ]
    try:
        for (engine, url), process in zip(urls, processes, strict=True):
            health = url + ENGINES[engine]
            wait_until(lambda health=health: _answers(health), f"the stand-in for {engine}")  # type: ignore[misc]
            assert process.poll() is None
        yield
    finally:
        for process in processes:
            process.terminate()
            process.wait(20)


def _answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=5).is_success
    except httpx.HTTPError:
        return False
