"""What all tests share."""

import os
import signal

import pytest

# Drivers of a Ray that `enginehouse serve` started have to be on loopback too. Ray reads it when it is imported.
os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"

# A shell's background job ignores SIGINT, and so would every process that a test starts and means to stop by it.
signal.signal(signal.SIGINT, signal.default_int_handler)

pytest_plugins = ["tests.live.fixtures", "tests.virtual_time"]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--engine",
        action="append",
        default=[],
        metavar="NAME",
        help="Tests of real servers: only with this engine; repeatable. Without: all that are installed.",
    )
