"""A real sentence encoder on a real engine, as clients use it; compared with the model's own definition."""

import base64
import math
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from deployments import bundled_embeddings, environments, models
from tests.live.server import Server, serving

pytestmark = pytest.mark.skipif(
    not environments.is_installed("vllm"), reason="vllm isn't installed; run 'enginehouse engines install vllm'"
)

CONFIG = Path(__file__).parents[2] / "cluster" / "cpu-embeddings.yaml"
MODEL = bundled_embeddings.NAME
TEXTS = ["A cat sits on the mat.", "Interest rates rose again.", "日本語 🎉", "Kittens like to play."]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving(CONFIG) as running:
        yield running


@pytest.fixture
def client(server: Server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=60) as open_client:
        yield open_client


@pytest.fixture(scope="module")
def expected() -> list[list[float]]:
    """The embeddings by the model's definition: the mean of its tokens' last hidden states, of length 1."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    folder = models.resolve(MODEL)
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder)
    found = []
    with torch.no_grad():
        for text in TEXTS:
            mean = model(**tokenizer(text, return_tensors="pt")).last_hidden_state.mean(dim=1)[0]
            found.append((mean / mean.norm()).tolist())
    return found


def cosine(a: Sequence[float], b: Sequence[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True)) / math.hypot(*a) / math.hypot(*b)


def test_vectors_are_the_model_s_own(client: httpx.Client, expected: list[list[float]]) -> None:
    answer = client.post("/v1/embeddings", json={"model": MODEL, "input": TEXTS})
    document = answer.json()
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-enginehouse-engine"] == "vllm"
    assert (document["object"], document["model"]) == ("list", MODEL)
    assert [item["index"] for item in document["data"]] == [0, 1, 2, 3]
    for item, vector in zip(document["data"], expected, strict=True):
        assert len(item["embedding"]) == 384
        assert cosine(item["embedding"], vector) > 0.9999
    assert document["usage"]["prompt_tokens"] == document["usage"]["total_tokens"] > 20


def test_base64_holds_the_same_numbers(client: httpx.Client, expected: list[list[float]]) -> None:
    body = {"model": MODEL, "input": TEXTS[0], "encoding_format": "base64"}
    [item] = client.post("/v1/embeddings", json=body).json()["data"]
    vector = struct.unpack("<384f", base64.b64decode(item["embedding"]))
    assert cosine(vector, expected[0]) > 0.9999


def test_openai_s_client(server: Server, expected: list[list[float]]) -> None:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none") as client:
        answer = client.embeddings.create(model=MODEL, input=TEXTS[:2])
    assert cosine(answer.data[1].embedding, expected[1]) > 0.9999


def test_scores_and_ranks(client: httpx.Client) -> None:
    body: dict[str, Any] = {"model": MODEL, "text_1": TEXTS[0], "text_2": [TEXTS[3], TEXTS[1]]}
    near, far = (item["score"] for item in client.post("/v1/score", json=body).json()["data"])
    assert near > far + 0.2
    body = {"model": MODEL, "query": "cats", "documents": [TEXTS[1], TEXTS[3]]}
    for path in ("/v1/rerank", "/rerank"):
        first, second = client.post(path, json=body).json()["results"]
        assert (first["index"], second["index"]) == (1, 0)
        assert first["relevance_score"] > second["relevance_score"]


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("/v1/embeddings", {"input": []}, "input"),
        ("/v1/embeddings", {"input": "word " * 3000}, "input"),
        ("/v1/embeddings", {"input": "a", "dimensions": 64}, "input"),
        ("/v1/embeddings", {"inputs": "a"}, "inputs"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}, "model"),
    ],
)
def test_what_it_cannot(client: httpx.Client, path: str, fields: dict[str, Any], param: str) -> None:
    answer = client.post(path, json={"model": MODEL, **fields})
    error = answer.json()["error"]
    assert (answer.status_code, error["type"]) == (400, "invalid_request_error")
    assert error["param"] == param, error


def test_the_model_says_what_it_can(client: httpx.Client) -> None:
    model = client.get(f"/v1/models/{MODEL}").json()
    [pool] = model["pools"]
    assert model["engines"] == ["vllm"]
    assert pool["endpoints"] == ["embeddings", "score", "rerank", "tokenize", "detokenize"]
    assert pool["context_length"] == 256
