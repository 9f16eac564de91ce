"""What all tests share."""

import os

# Drivers of a Ray that `enginehouse serve` started have to be on loopback too. Ray reads it when it is imported.
os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"

pytest_plugins = ["tests.live.fixtures"]
