from pathlib import Path

import pytest

from app.capabilities import HEADS, model_documents, rows
from app.check import check_file
from app.config import IngressConfig
from deployments.config import PoolConfig

ROOT = Path(__file__).parents[2]


def test_a_model_with_its_pools() -> None:
    ingress = IngressConfig.model_validate(
        {"models": {"m": {"pools": ["b", "a", "elsewhere"]}, "a-m": {"pools": ["a"]}}}
    )
    pools = {
        "a": PoolConfig.model_validate({"engine": "vllm", "model": "x/y", "engine_args": {"max_model_len": 512}}),
        "b": PoolConfig.model_validate({"engine": "transformers", "model": "x/y"}),
    }
    first, second = model_documents(ingress, pools)
    assert (first["id"], first["engines"], [pool["pool"] for pool in first["pools"]]) == ("a-m", ["vllm"], ["a"])
    assert (second["engines"], [pool["pool"] for pool in second["pools"]]) == (["transformers", "vllm"], ["b", "a"])
    assert first["pools"][0]["context_length"] == 512
    assert first["pools"][0]["json_schema"] and not second["pools"][0]["json_schema"]


@pytest.mark.parametrize("path", sorted((ROOT / "cluster").glob("*.yaml")), ids=lambda path: path.name)
def test_every_shipped_config_can_be_described(path: Path) -> None:
    checked = check_file(path, {})
    assert checked.ingress is not None and not checked.problems
    documents = model_documents(checked.ingress, checked.pools)
    assert {document["id"] for document in documents} == checked.ingress.models.keys()
    for row in rows(documents):
        assert len(row) == len(HEADS) and all(row)
