"""What the pools of a config will honour, told without starting anything and without importing an engine."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from app.config import IngressConfig
from deployments import registry
from deployments.config import PoolConfig

Document = dict[str, Any]


def model_documents(ingress: IngressConfig, pools: Mapping[str, PoolConfig]) -> list[Document]:
    """Each model with its pools, as `/v1/models` tells of them; a pool that isn't in the config is left out."""
    found = {name: pool_document(name, pool) for name, pool in pools.items()}
    return [
        model_document(name, [found[pool] for pool in model.pools if pool in found])
        for name, model in sorted(ingress.models.items())
    ]


def model_document(name: str, pools: list[Document]) -> Document:
    engines = sorted({pool["engine"] for pool in pools if pool["engine"]})
    return {"id": name, "engines": engines, "pools": pools}


def pool_document(name: str, pool: PoolConfig) -> Document:
    engine = registry.create(pool.engine, pool.pool_model, pool.typed_engine_args())
    return {"pool": name, "engine": pool.engine, **asdict(engine.capabilities())}


def rows(documents: list[Document]) -> list[tuple[str, ...]]:
    """A table's row for each pool of each model."""
    return [
        (
            document["id"],
            pool["engine"],
            str(pool["context_length"] or "?"),
            ", ".join(pool["tools"]) or "-",
            *("yes" if pool[name] else "-" for name in ("json_schema", "logprobs", "n", "lora")),
            ", ".join(pool["parts"]),
            ", ".join(pool["endpoints"]),
        )
        for document in documents
        for pool in document["pools"]
    ]


HEADS = ("MODEL", "ENGINE", "CONTEXT", "TOOLS", "SCHEMA", "LOGPROBS", "N", "LORA", "PARTS", "ENDPOINTS")
