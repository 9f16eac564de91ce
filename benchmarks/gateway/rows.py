"""The contestants: how each is started, and which can't be here."""

import os
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from app.flags import flags, free_port
from benchmarks.gateway import rivals
from benchmarks.gateway.client import KEY
from benchmarks.gateway.engine import MODEL
from benchmarks.gateway.processes import ROOT, Launch, module

BIN = Path(sys.executable).parent
MOST_DEPLOYED = 10  # of a row's pools: each is a process of 160 MB. The others are configured, and down

Report = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Place:
    """What a row is given to run in."""

    port: int  # to listen on
    folder: Path  # its own, empty, with a short path: sockets' paths are limited
    upstream_port: int  # of the mock server


@dataclass(frozen=True, slots=True)
class Row:
    """One contestant."""

    name: str
    launch: Callable[[Place], Launch]
    missing: Callable[[], str | None] = lambda: None  # why it can't run here, if so
    prepare: Callable[[Report], None] = lambda report: None  # make what it needs, once on a machine


def _with_pools(count: int) -> Callable[[Place], Launch]:
    return lambda place: _enginehouse(place, count)


def _enginehouse(place: Place, pools: int = 1) -> Launch:
    """As `enginehouse serve` starts it: that itself takes only pools of `deployments.pool:build`, whose engines are all
    in the registry, and the benchmark's isn't one for users."""
    pool = {"engine": "benchmark", "model": MODEL, "num_cpus": 0.1}
    config = enginehouse_config(place, "benchmarks.gateway.pool:build", pool, pools)
    haproxy = place.folder / "haproxy"
    haproxy.mkdir()
    path = {"PATH": os.pathsep.join([str(BIN), os.environ.get("PATH", os.defpath)])}
    command = [str(BIN / "serve"), "run", "--address", "local", "--app-dir", str(ROOT), str(config)]
    return Launch(command, ray_environ(place) | flags(haproxy) | path)


def _enginehouse_remote(place: Place) -> Launch:
    servers = {"urls": [f"http://127.0.0.1:{place.upstream_port}/v1"]}
    pool = {"engine": "openai", "model": MODEL, "num_cpus": 0.1, "engine_args": servers}
    config = enginehouse_config(place, "deployments.pool:build", pool)
    command = [str(BIN / "enginehouse"), "serve", str(config), "--port", str(place.port)]
    return Launch(command, ray_environ(place) | {"ENGINEHOUSE_CACHE": str(place.folder / "cache")})


def enginehouse_config(place: Place, import_path: str, pool: Mapping[str, Any], pools: int = 1) -> Path:
    """With so many models, each with a pool of its own. The first is the one that is asked for."""
    names = [MODEL, *(f"{MODEL}-{number}" for number in range(2, pools + 1))]
    models = {"models": {name: {"pools": [f"pool-{name}"]} for name in names}}
    ingress = {"name": "ingress", "route_prefix": "/", "import_path": "app.main:build"}
    deployments = [{"name": "Ingress", "user_config": models}]
    served = [{**pool, "served_name": name} for name in names[:MOST_DEPLOYED]]
    return _config(
        place,
        {**ingress, "deployments": deployments},
        *(
            {"name": f"pool-{args['served_name']}", "route_prefix": None, "import_path": import_path, "args": args}
            for args in served
        ),
    )


def _rival(application: str, environ: Callable[[Place], Mapping[str, str]]) -> Callable[[Place], Launch]:
    """A row of Ray Serve's own, from the module of that name."""

    def launch(place: Place) -> Launch:
        import_path = f"benchmarks.gateway.{application}:build"
        config = _config(place, {"name": "rival", "route_prefix": "/", "import_path": import_path})
        return Launch(
            module("serve_run", config, python=rivals.python()),
            {**ray_environ(place), **_NO_IDLE_WORKERS, **environ(place)},
        )

    return launch


def _request_models(_: Place) -> dict[str, str]:
    stubs = Path(__file__).parent / "stubs"
    return {"PYTHONPATH": os.pathsep.join([str(ROOT), str(stubs)])}


def _direct_streaming(place: Place) -> dict[str, str]:
    """Serve sends streams past its proxy, by an HAProxy that is kept to files of its own, and on loopback."""
    haproxy = place.folder / "haproxy"
    haproxy.mkdir()
    its_own = {name: value for name, value in flags(haproxy).items() if name.startswith("RAY_SERVE_HAPROXY_")}
    switches = {"RAY_SERVE_LLM_ENABLE_DIRECT_STREAMING": "1", "RAY_SERVE_ENABLE_HA_PROXY": "1"}
    return {**_request_models(place), **its_own, **switches}


def _config(place: Place, *applications: Mapping[str, Any]) -> Path:
    """A Serve config file. No row writes an access log: that would be much of what it costs."""
    path = place.folder / "serve.yaml"
    document = {
        "proxy_location": "HeadOnly",
        "http_options": {"host": "127.0.0.1", "port": place.port},
        "logging_config": {"enable_access_log": False},
        "applications": list(applications),
    }
    path.write_text(yaml.safe_dump(document, sort_keys=False))
    return path


def ray_environ(place: Place) -> dict[str, str]:
    return {
        "RAY_TMPDIR": str(place.folder),
        "TMPDIR": str(place.folder),
        "RAY_AUTH_MODE": "disabled",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # Ray's own ports are on loopback
    }


def _byte_proxy(place: Place) -> Launch:
    return Launch(module("byte_proxy", place.port, f"http://127.0.0.1:{place.upstream_port}"))


def _vllm_router(place: Place) -> Launch:
    return Launch([_program("vllm-router"), *_router_options(place), "--log-level", "warning"])


def _smg(place: Place) -> Launch:
    options = [*_router_options(place), "--log-level", "warn", "--disable-tokenizer-autoload"]
    return Launch([_program("smg"), "launch", *options])


def _router_options(place: Place) -> list[str]:
    here = ["--host", "127.0.0.1", "--port", str(place.port)]
    metrics = ["--prometheus-host", "127.0.0.1", "--prometheus-port", str(free_port())]
    return [*here, *metrics, "--worker-urls", f"http://127.0.0.1:{place.upstream_port}", "--policy", "round_robin"]


def _litellm(place: Place) -> Launch:
    config = place.folder / "litellm.yaml"
    server = {"model": f"openai/{MODEL}", "api_base": f"http://127.0.0.1:{place.upstream_port}/v1", "api_key": "none"}
    config.write_text(yaml.safe_dump({"model_list": [{"model_name": MODEL, "litellm_params": server}]}))
    here = ["--host", "127.0.0.1", "--port", str(place.port), "--num_workers", "1", "--telemetry", "False"]
    quiet = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_LOG": "ERROR", "LITELLM_MODE": "PRODUCTION"}
    return Launch([_program("litellm"), "--config", str(config), *here], {**quiet, "LITELLM_MASTER_KEY": KEY})


def _program(name: str) -> str:
    return _found(name) or name


def _found(name: str) -> str | None:
    return os.environ.get(_variable(name)) or shutil.which(name)


def _variable(name: str) -> str:
    return f"GATEWAY_BENCH_{name.upper().replace('-', '_')}"


def _needs(name: str) -> Callable[[], str | None]:
    def missing() -> str | None:
        return None if _found(name) else f"no {name} on PATH, and {_variable(name)} names none"

    return missing


# Ray keeps some for work that doesn't come. Rivals' couldn't use them, for theirs are set up otherwise (`serve_run`).
_NO_IDLE_WORKERS = {"RAY_num_workers_soft_limit": "0"}

OWN_WORKER = (
    Row("enginehouse", _enginehouse),
    Row("handle-generator", _rival("handle_generator", lambda _: {}), prepare=rivals.build),
    Row("ray-serve-llm", _rival("ray_llm", _request_models), prepare=rivals.build),
    Row("ray-serve-llm-direct", _rival("ray_llm", _direct_streaming), prepare=rivals.build),
)
REMOTE_SERVER = (
    Row("enginehouse-remote", _enginehouse_remote),
    Row("byte-proxy", _byte_proxy),
    Row("vllm-router", _vllm_router, _needs("vllm-router")),
    Row("smg", _smg, _needs("smg")),
    Row("litellm", _litellm, _needs("litellm")),
)
MANY_POOLS = (  # only where they are named: what more pools cost a request
    Row("enginehouse-10-pools", _with_pools(10)),
    Row("enginehouse-100-pools", _with_pools(100)),
)
USUAL = tuple(row.name for row in (*OWN_WORKER, *REMOTE_SERVER))
ROWS = {row.name: row for row in (*OWN_WORKER, *REMOTE_SERVER, *MANY_POOLS)}
