"""Which engines can run on this machine, and the configuration of one server that has a pool of each."""

import os
from collections.abc import Collection
from pathlib import Path
from typing import Any

import yaml

from deployments import environments, registry
from tests.waiting import free_port

ROOT = Path(__file__).parents[2]
BASE = ROOT / "cluster" / "cpu-engines.yaml"
BEHIND = "transformers"  # the pool of the same server that the openai engine is put in front of
# What that pool has, Transformers' or the simulated one: nobody can ask it.
_REMOTE = {
    "endpoints": ["chat/completions", "completions", "tokenize", "detokenize"],
    "tools": [],
    "json_schema": False,
    "context_length": 8192,
}
# Engines whose package or server can't be had without a GPU: their adapters run over a stand-in of it.
STAND_INS = ("tensorrt_llm", "triton", "tgi")
NO_MODEL = frozenset({"simulated", *STAND_INS})  # where no model computes
TGI_TAKES = 128  # requests at once, by default; a server answers the others with a 429
# Long enough that an answer doesn't end while a check looks at it, unless it asks for few tokens.
_SIMULATED = {"token_interval_s": 0.01, "answer_tokens": 640, "max_num_seqs": 32}


def engines_here() -> list[str]:
    """The engines that are installed, those that compute first."""
    installed = [name for name in environments.ENGINES if environments.is_installed(name)]
    engines = ("transformers", *installed, "openai", "simulated", *STAND_INS)
    return [name for name in dict.fromkeys(engines) if name in registry.ENGINES]


def model_of(engine: str) -> str:
    """The name that its model has in the configuration."""
    return "simulated" if engine == "simulated" else f"smollm2-{engine}"


def document(engines: Collection[str], port: int, behind: str = BEHIND) -> dict[str, Any]:
    """A Serve config, as `cluster/cpu-engines.yaml`, with a pool of each of these engines, named like the engine."""
    config: dict[str, Any] = yaml.safe_load(BASE.read_text())
    config["http_options"]["port"] = port
    ingress, *pools = config["applications"]
    found = {
        pool["name"]: pool for pool in [*pools, _openai(port, behind), _simulated(), _tensorrt_llm(), _triton(), _tgi()]
    }
    live = ingress["deployments"][0]["user_config"]
    live["models"] = {model_of(name): {"pools": [name]} for name in engines}
    if "tgi" in engines:
        live["admission"] = {"pools": {"tgi": {"max_concurrent": TGI_TAKES}}}
    return {**config, "applications": [ingress, *(found[name] for name in engines)]}


def environ() -> dict[str, str]:
    """What a server needs so that its replicas find the stand-ins for packages."""
    paths = [str(ROOT / "tests" / "fakes" / "site"), str(ROOT), os.environ.get("PYTHONPATH", "")]
    return {"PYTHONPATH": os.pathsep.join(filter(None, paths))}


def write(engines: Collection[str], port: int, folder: Path, behind: str = BEHIND) -> Path:
    path = folder / "conformance.yaml"
    path.write_text(yaml.safe_dump(document(engines, port, behind), sort_keys=False))
    return path


def _openai(port: int, behind: str) -> dict[str, Any]:
    # It waits for its server, which is up only when this same server is.
    where = {"urls": [f"http://127.0.0.1:{port}/v1"], "start_timeout_s": 300}
    return _pool("openai", model_of(behind), where | _REMOTE, served_name=model_of("openai"))


def _simulated() -> dict[str, Any]:
    return _pool("simulated", model_of("simulated"), _SIMULATED)


def _tensorrt_llm() -> dict[str, Any]:
    served_name = model_of("tensorrt_llm")
    return _pool("tensorrt_llm", "smollm2-135m-instruct", {"max_seq_len": 8192}, served_name=served_name, gpus=0)


def _triton() -> dict[str, Any]:
    port = free_port()
    args = {"urls": [f"http://127.0.0.1:{port}"], "metrics_port": port, "dialect": "ensemble", "context_length": 8192}
    return _pool("triton", "smollm2-135m-instruct", {**args, "guided_decoding": True}, served_name=model_of("triton"))


def _tgi() -> dict[str, Any]:
    args = {"urls": [f"http://127.0.0.1:{free_port()}"]}
    return _pool("tgi", "org/model", args, served_name=model_of("tgi"))


def _pool(engine: str, model: str, engine_args: dict[str, Any], **more: Any) -> dict[str, Any]:
    args = {"engine": engine, "model": model, "num_cpus": 0.05, **more, "engine_args": engine_args}
    return {"name": engine, "route_prefix": None, "import_path": "deployments.pool:build", "args": args}
