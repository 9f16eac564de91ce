"""LoRA adapters on a real engine: listed, loaded and unloaded while it serves."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.live.fixtures import engine_params
from tests.live.server import Server, serving
from tests.lora_files import adapter_shapes, write_adapter
from tests.waiting import wait_until

ENGINE_ARGS: dict[str, dict[str, Any]] = {
    "vllm": {"max_model_len": 1024, "max_num_seqs": 4, "enable_lora": True, "max_lora_rank": 16, "max_loras": 2},
    "sglang": {
        "context_length": 1024,
        "max_running_requests": 4,
        "enable_lora": True,
        "max_lora_rank": 16,
        "lora_target_modules": ["q_proj", "v_proj"],
        "max_loras_per_batch": 3,  # and one place for the base
    },
}
LAYERS, HIDDEN, HEADS = 30, 576, {"q_proj": 576, "v_proj": 192}  # of SmolLM2-135M
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
PARIS = "The capital of France is Paris."


def config_of(engine: str, folder: Path) -> dict[str, Any]:
    pool = {
        "engine": engine,
        "model": "smollm2-135m-instruct",
        "served_name": "base",
        "gpus": 0,
        "adapters": {"listed": str(folder / "listed")},
        "adapters_folder": str(folder / "live"),
        "engine_args": ENGINE_ARGS[engine],
    }
    ingress = {"name": "Ingress", "user_config": {"models": {"base": {"pools": ["pool"]}}}}
    applications = [
        {"name": "ingress", "route_prefix": "/", "import_path": "app.main:build", "deployments": [ingress]},
        {"name": "pool", "route_prefix": None, "import_path": "deployments.pool:build", "args": pool},
    ]
    http = {"host": "127.0.0.1", "port": 8000}
    return {"proxy_location": "HeadOnly", "http_options": http, "applications": applications}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    metafunc.parametrize("engine", engine_params(metafunc.config, ENGINE_ARGS), indirect=True, scope="module")


@pytest.fixture(scope="module")
def engine(request: pytest.FixtureRequest) -> str:
    chosen: str = request.param
    return chosen


@pytest.fixture(scope="module")
def folder(engine: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("adapters")


@pytest.fixture
def files(folder: Path) -> Path:
    return folder / "live" / "good"


@pytest.fixture(scope="module")
def lora_server(engine: str, folder: Path) -> Iterator[Server]:
    fitting = adapter_shapes(LAYERS, HIDDEN, HEADS, 8)
    write_adapter(folder / "listed", fitting, scale=0.05)
    write_adapter(folder / "live" / "good", fitting, scale=0.08)
    write_adapter(folder / "live" / "other-base", adapter_shapes(LAYERS, 2048, HEADS, 8))
    write_adapter(folder / "live" / "high-rank", adapter_shapes(LAYERS, HIDDEN, HEADS, 32))
    write_adapter(folder / "outside", fitting)
    (folder / "live" / "link").symlink_to(folder / "outside")
    config = folder / "config.yaml"
    config.write_text(yaml.safe_dump(config_of(engine, folder)))
    with serving(config) as server:
        # A pool that is up describes itself within a look or two.
        wait_until(lambda: "listed" in models(server), "the listed adapter is there", 30)
        yield server


def models(server: Server) -> dict[str, dict[str, Any]]:
    documents = httpx.get(f"{server.url}/v1/models", timeout=10).json()["data"]
    return {document["id"]: document for document in documents}


def ask(server: Server, model: str, **fields: Any) -> httpx.Response:
    body = {"model": model, "messages": QUESTION, "temperature": 0, "max_tokens": 12, **fields}
    return httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=300)  # a replica may have to start


def text(server: Server, model: str) -> str:
    answer = ask(server, model)
    assert answer.status_code == 200, answer.text
    assert answer.json()["model"] == model
    content: str = answer.json()["choices"][0]["message"]["content"]
    return content


def change(server: Server, what: str, **body: str) -> httpx.Response:
    return httpx.post(f"{server.url}/v1/{what}_lora_adapter", json=body, timeout=120)


def test_a_listed_adapter_answers_otherwise_than_its_base(lora_server: Server) -> None:
    document = models(lora_server)["listed"]
    assert (document["parent"], document["root"]) == ("base", "base")
    assert text(lora_server, "base") == PARIS
    assert text(lora_server, "listed") != PARIS
    assert text(lora_server, "base") == PARIS


def test_an_adapter_s_stream_carries_its_name(lora_server: Server) -> None:
    lines = [line for line in ask(lora_server, "listed", stream=True).text.splitlines() if line.startswith("data: {")]
    assert len(lines) > 2
    assert all('"model":"listed"' in line for line in lines)


def test_a_listed_adapter_is_not_unloaded_live(lora_server: Server) -> None:
    answer = change(lora_server, "unload", lora_name="listed")
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "not_live")


@pytest.mark.parametrize(
    ("path", "code", "words"),
    [
        ("missing", "invalid_adapter", "There is no folder 'missing'."),
        ("other-base", "invalid_adapter", "is [8, 2048], but the model's 'model.layers.0.self_attn.q_proj.weight'"),
        ("high-rank", "invalid_adapter", "has rank 32; this pool's engine takes at most 16."),
        ("../outside", "path_not_allowed", "is not inside the folder"),
        ("link", "path_not_allowed", "is not inside the folder"),
        ("/etc", "path_not_allowed", "is not inside the folder"),
    ],
)
def test_what_is_wrong_is_said_and_changes_nothing(lora_server: Server, path: str, code: str, words: str) -> None:
    before = sorted(models(lora_server))
    answer = change(lora_server, "load", lora_name="wrong", lora_path=path)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"], error["code"]) == (400, "lora_path", code)
    assert words in error["message"]
    assert sorted(models(lora_server)) == before
    assert ask(lora_server, "wrong").status_code == 404


def test_load_restart_and_unload(lora_server: Server, files: Path) -> None:
    answer = change(lora_server, "load", lora_name="live", lora_path="good")
    assert answer.status_code == 200, answer.text
    assert answer.json() == {"id": "live", "object": "model", "parent": "base", "pools": ["pool"]}
    said = text(lora_server, "live")
    assert said not in (PARIS, text(lora_server, "listed"))
    assert change(lora_server, "load", lora_name="live", lora_path="good").json()["error"]["code"] == "name_taken"

    [replica] = lora_server.replicas("pool")
    os.kill(replica.pid, signal.SIGKILL)

    def serves() -> bool:
        """A pool that is down tells so; one that is back has the adapter: never is there none of its name."""
        status = ask(lora_server, "live").status_code
        assert status in (200, 503)
        return status == 200

    wait_until(serves, "the pool serves again", 180, pause_s=0.5)
    wait_until(lora_server.is_ready, "the ingress knows", 30)  # one that waited for the replica may be answered before
    assert lora_server.replicas("pool")[0].pid != replica.pid
    assert text(lora_server, "live") == said
    assert text(lora_server, "base") == PARIS

    files.rename(files.with_name("moved"))
    answer = ask(lora_server, "live")  # SGLang keeps what it loaded
    assert answer.status_code == 200 or "are gone from the server" in answer.json()["error"]["message"]
    assert text(lora_server, "base") == PARIS
    files.with_name("moved").rename(files)
    assert text(lora_server, "live") == said

    answer = change(lora_server, "unload", lora_name="live")
    assert answer.json() == {"id": "live", "object": "model", "deleted": True}
    assert ask(lora_server, "live").status_code == 404
    assert "live" not in models(lora_server)
    assert change(lora_server, "unload", lora_name="live").status_code == 404
    assert text(lora_server, "listed") != PARIS

    again = change(lora_server, "load", lora_name="live", lora_path="good")
    assert again.status_code == 200, again.text
    assert text(lora_server, "live") == said
