"""A stand-in for `text-generation-launcher`: its flags, a child as its shards are, and the stand-in for its server."""

import os
import signal
import subprocess
import sys
import time

import click
import uvicorn

from tests.fakes.tgi import Server

FLAGS = (
    *("num-shard", "quantize", "dtype", "max-concurrent-requests", "max-input-tokens", "max-total-tokens"),
    *("max-batch-prefill-tokens", "max-batch-total-tokens", "waiting-served-ratio", "max-waiting-tokens"),
    *("revision", "lora-adapters", "prometheus-port", "master-port", "shard-uds-path"),
)


@click.command()
@click.option("--model-id", required=True)
@click.option("--hostname", required=True)
@click.option("--port", type=int, required=True)
def main(model_id: str, hostname: str, port: int, **flags: str | None) -> None:
    match model_id:
        case "org/fails":
            sys.exit("Error: DownloadError")
        case "org/hangs":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
    shard = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    with open(os.environ["LAUNCHED"], "w") as told:
        print(os.getpid(), shard.pid, *sys.argv[1:], file=told)
    if model_id == "org/hangs":
        time.sleep(600)  # a model that is loaded for ever
    total = flags["max_total_tokens"]
    adapters = frozenset(one.partition("=")[0] for one in (flags["lora_adapters"] or "").split(",") if one)
    server = Server(interval_s=0.001, max_total_tokens=int(total or 8192), adapters=adapters)
    try:
        uvicorn.run(server.app(), host=hostname, port=port, log_level="warning")
    finally:
        shard.terminate()


for flag in FLAGS:
    main = click.option(f"--{flag}")(main)

if __name__ == "__main__":
    main()
