"""A TGI server of this replica's own: `text-generation-launcher`, started on loopback and watched.

It stays in the replica's session, so that what it starts ends with the replica, however that ends (`guard`).
"""

import asyncio
import logging
import os
import shutil
import signal
import socket
import tempfile
from asyncio.subprocess import Process
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from deployments.child import signalled_with_parent
from deployments.engine import EngineDeadError, PoolModel

logger = logging.getLogger("ray.serve")

COMMAND = "text-generation-launcher"
HOST = "127.0.0.1"
_PORTS = ("port", "prometheus_port", "master_port")


class TgiLaunch(BaseModel):
    """Flags of `text-generation-launcher` (TGI 3.3). Others are set by environment variables, as TGI has them."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    num_shard: int | None = Field(None, ge=1, description="GPUs that share the model (tensor parallelism).")
    quantize: Literal["awq", "gptq", "eetq", "exl2", "marlin", "bitsandbytes", "fp8"] | None = Field(
        None, description="How the weights are quantized."
    )
    dtype: Literal["float16", "bfloat16"] | None = Field(None, description="Type of the weights.")
    max_concurrent_requests: int | None = Field(None, ge=1, description="Requests there may be; TGI's default: 128.")
    max_input_tokens: int | None = Field(None, ge=1, description="Most tokens of a prompt.")
    max_total_tokens: int | None = Field(None, ge=2, description="Most tokens of prompt and answer.")
    max_batch_prefill_tokens: int | None = Field(None, ge=1, description="Most prompt tokens computed at once.")
    max_batch_total_tokens: int | None = Field(None, ge=1, description="Most tokens of all running requests.")
    waiting_served_ratio: float | None = Field(
        None, gt=0, description="Waiting to running requests above which running ones pause for a prefill."
    )
    max_waiting_tokens: int | None = Field(None, ge=1, description="Decode steps before waiting requests go first.")
    lora_adapters: tuple[str, ...] = Field(
        (), description="LoRA adapters to load, `name=path` or hub ids; `adapter_id` has this pool ask for one."
    )

    def flags(self) -> list[str]:
        given = self.model_dump(exclude_none=True, exclude_defaults=True)
        if self.lora_adapters:
            given["lora_adapters"] = ",".join(self.lora_adapters)
        return [part for name, value in given.items() for part in (f"--{name.replace('_', '-')}", str(value))]


class Launcher:
    """The process and its address."""

    def __init__(self, launch: TgiLaunch, model: PoolModel) -> None:
        ports = _free_ports(len(_PORTS))
        self.url = f"http://{HOST}:{ports[0]}"
        self._flags = ["--model-id", model.source]
        if model.revision is not None:
            self._flags += ["--revision", model.revision]
        self._flags += ["--hostname", HOST, *launch.flags()]
        for name, port in zip(_PORTS, ports, strict=True):
            self._flags += [f"--{name.replace('_', '-')}", str(port)]
        self._sockets: tempfile.TemporaryDirectory[str] | None = None
        self._process: Process | None = None

    async def start(self) -> None:
        """Start the process; its output is this replica's.

        Raises:
            ValueError: it isn't installed.
        """
        command = shutil.which(COMMAND)
        if command is None:
            raise ValueError(
                f"'launch' needs {COMMAND}, which is not on this node's PATH: use TGI's image with Enginehouse added, "
                "or give the 'urls' of servers that run elsewhere"
            )
        self._sockets = tempfile.TemporaryDirectory(prefix="enginehouse-tgi-")  # its default is shared by all of a node
        shards = ["--shard-uds-path", os.path.join(self._sockets.name, "shard")]
        logger.info("starting %s %s", COMMAND, " ".join(self._flags))
        self._process = await asyncio.create_subprocess_exec(
            command,
            *self._flags,
            *shards,
            stdin=asyncio.subprocess.DEVNULL,
            process_group=0,
            preexec_fn=partial(signalled_with_parent, signal.SIGTERM),
        )

    async def ended(self) -> None:
        """
        Raises:
            EngineDeadError: the process has ended, for whatever reason.
        """
        assert self._process is not None, "start() comes first"
        await self._process.wait()
        self.raise_if_ended()

    def raise_if_ended(self) -> None:
        """
        Raises:
            EngineDeadError: the process has ended.
        """
        if self._process is not None and (status := self._process.returncode) is not None:
            raise EngineDeadError(f"{COMMAND} ended {_how(status)}; its words are in this replica's log")

    async def stop(self, patience_s: float = 10) -> None:
        """End it in good order, and what is left of it after `patience_s` seconds at once."""
        process, self._process = self._process, None
        if process is not None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
                with suppress(TimeoutError):
                    async with asyncio.timeout(patience_s):
                        await process.wait()
                os.killpg(process.pid, signal.SIGKILL)  # it may have shards that are left
            await process.wait()
        if self._sockets is not None:
            self._sockets.cleanup()


def _how(status: int) -> str:
    return f"by signal {-status}" if status < 0 else f"with status {status}"


def _free_ports(count: int) -> Sequence[int]:
    """Ports that nobody listens on now, each another."""
    sockets = [socket.create_server((HOST, 0)) for _ in range(count)]
    try:
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()
