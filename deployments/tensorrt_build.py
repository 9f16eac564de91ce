"""What decides a compiled TensorRT-LLM engine: the checkpoint, `trtllm-build`'s parameters, and the machine.

Source: `trtllm-build` of TensorRT-LLM 1.2, and the layout of the folders that it reads and writes.
"""

import json
import os
import subprocess
from dataclasses import asdict, dataclass
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal, Protocol

from pydantic import BaseModel, ConfigDict, Field

from deployments.engine import PoolModel

SMI = ("nvidia-smi", "--query-gpu=compute_cap,name", "--format=csv,noheader")
SMI_S = 30.0


class BuildError(ValueError):
    """An engine can't be compiled, or what is compiled can't be used here. The message says what to do."""


class BuildArgs(BaseModel):
    """`trtllm-build`'s parameters; what isn't said is its own default."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    max_batch_size: int | None = Field(None, ge=1, description="Most requests that run together.")
    max_input_len: int | None = Field(None, ge=1, description="Most tokens of a prompt.")
    max_seq_len: int | None = Field(None, ge=1, description="Most tokens of prompt and answer.")
    max_beam_width: int | None = Field(None, ge=1, description="Most beams; nothing here searches with beams.")
    max_num_tokens: int | None = Field(None, ge=1, description="Most tokens of a forward pass.")
    kv_cache_type: Literal["continuous", "paged", "disabled"] | None = Field(
        None, description="Layout of the KV cache."
    )
    workers: int | None = Field(None, ge=1, description="Processes that build; the result is the same.")


@dataclass(frozen=True, slots=True)
class Machine:
    """What a compiled engine is bound to."""

    gpu_architecture: str  # as "sm_90"
    tensorrt: str
    tensorrt_llm: str


@dataclass(frozen=True, slots=True)
class Build:
    """One engine to compile."""

    name: str  # of the model, for people
    checkpoint: Path
    fingerprint: str  # of the checkpoint's files
    revision: str | None  # of the model
    args: BuildArgs
    tp_size: int
    pp_size: int
    machine: Machine

    @property
    def key(self) -> str:
        """The same for the same result, wherever and by however many processes it is built."""
        decides = {
            "checkpoint": self.fingerprint,
            "revision": self.revision,
            "args": self.args.model_dump(exclude_none=True, exclude={"workers"}),
            "tp": self.tp_size,
            "pp": self.pp_size,
            "machine": asdict(self.machine),
        }
        return sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()[:16]

    def command(self, executable: Path, output: Path) -> list[str]:
        """`trtllm-build`'s command line."""
        flags = [f"--{name}={value}" for name, value in self.args.model_dump(exclude_none=True).items()]
        return [str(executable), f"--checkpoint_dir={self.checkpoint}", f"--output_dir={output}", *flags]


class _Args(Protocol):
    @property
    def checkpoint(self) -> str | None: ...
    @property
    def build(self) -> BuildArgs: ...
    @property
    def tensor_parallel_size(self) -> int: ...
    @property
    def pipeline_parallel_size(self) -> int: ...


def build_of(model: PoolModel, args: _Args, machine: Machine) -> Build:
    """The engine that a pool with these arguments runs on this machine.

    Raises:
        BuildError: the checkpoint is none, or is for another number of GPUs.
    """
    assert args.checkpoint is not None, "checked with the arguments"
    checkpoint = Path(args.checkpoint).expanduser().absolute()
    tp_size, pp_size = parallelism(checkpoint / "config.json")
    wanted = (args.tensor_parallel_size, args.pipeline_parallel_size)
    if (tp_size, pp_size) != wanted:
        raise BuildError(
            f"The checkpoint {checkpoint} was converted for tensor_parallel_size {tp_size} and pipeline_parallel_size "
            f"{pp_size}, the pool wants {wanted[0]} and {wanted[1]}: convert it anew, or change the pool."
        )
    return Build(
        model.served_name.replace("/", "-"),
        checkpoint,
        fingerprint(checkpoint),
        model.revision,
        args.build,
        tp_size,
        pp_size,
        machine,
    )


def parallelism(config: Path) -> tuple[int, int]:
    """The tensor and pipeline parallel sizes that a checkpoint's, or an engine's, config.json says.

    Raises:
        BuildError: it can't be read.
    """
    try:
        document = json.loads(config.read_text("utf-8"))
        mapping = document.get("pretrained_config", document).get("mapping") or {}
        return int(mapping.get("tp_size", 1)), int(mapping.get("pp_size", 1))
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise BuildError(f"{config} can't be read: {error}. TensorRT-LLM's conversion of a model writes it.") from None


def fingerprint(checkpoint: Path) -> str:
    """Of a checkpoint: its config, and the names, sizes and times of its files, for reading them takes minutes."""
    digest = sha256((checkpoint / "config.json").read_bytes())
    for file in sorted(path for path in checkpoint.rglob("*") if path.is_file()):
        stat = file.stat()
        digest.update(f"{file.relative_to(checkpoint)} {stat.st_size} {stat.st_mtime_ns}".encode())
    return digest.hexdigest()


def find_machine() -> Machine:
    """This machine.

    Raises:
        BuildError: it has no NVIDIA GPU, GPUs of several architectures, or no TensorRT.
    """
    try:
        found = subprocess.run(SMI, capture_output=True, text=True, timeout=SMI_S, check=True).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise BuildError(f"No NVIDIA GPU is seen here, and compiling needs the one that will serve: {error}.") from None
    try:
        versions = [version(name) for name in ("tensorrt", "tensorrt_llm")]
    except PackageNotFoundError as error:
        raise BuildError(f"The Python package {error.name} isn't here, and TensorRT-LLM compiles with it.") from None
    return Machine(architecture(found), *versions)


def architecture(listing: str) -> str:
    """The architecture of all GPUs in a listing of nvidia-smi, one `compute_cap, name` a line.

    Raises:
        BuildError: there is none, or there are several.
    """
    capabilities = sorted({line.partition(",")[0].strip() for line in listing.splitlines() if line.strip()})
    if not capabilities:
        raise BuildError("nvidia-smi lists no GPU.")
    if len(capabilities) > 1:
        raise BuildError(f"The GPUs here differ ({', '.join(capabilities)}); show this pool only those of one kind.")
    return f"sm_{capabilities[0].replace('.', '')}"


def find_executable(folders: list[Path]) -> Path:
    """`trtllm-build`, in one of these folders or on PATH.

    Raises:
        BuildError: it is in none.
    """
    on_path = map(Path, os.environ.get("PATH", os.defpath).split(os.pathsep))
    for folder in (*folders, *on_path):
        if os.access(found := folder / "trtllm-build", os.X_OK):
            return found
    raise BuildError("trtllm-build isn't on PATH; it comes with TensorRT-LLM.")
