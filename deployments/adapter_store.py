"""The adapters that clients loaded live, kept in Ray's own key-value store: they outlive replicas, not the cluster."""

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict
from ray.experimental import internal_kv

NAMESPACE = b"enginehouse"
PREFIX = b"adapter/"


class LiveAdapter(BaseModel):
    """An adapter that was loaded live. Keys that an older version doesn't know are ignored."""

    model_config = ConfigDict(frozen=True)

    path: str  # as the client named it; each replica resolves it inside its own pool's folder
    model: str  # whose pools have it
    pools: tuple[str, ...]  # by application name
    ready: bool = False  # every replica had it once: clients may be sent to it


class AdapterStore:
    """One key an adapter, so that changes by several ingress replicas can't undo each other. Every call blocks."""

    def read(self) -> Mapping[str, LiveAdapter]:
        """All adapters, by name; none outside of Ray."""
        client: Any = internal_kv.internal_kv_get_gcs_client()  # type: ignore[no-untyped-call]
        if client is None:
            return {}
        keys = client.internal_kv_keys(PREFIX, NAMESPACE)
        found = client.internal_kv_multi_get(keys, NAMESPACE) if keys else {}
        return {_name(key): LiveAdapter.model_validate_json(value) for key, value in sorted(found.items())}

    def paths(self, pool: str) -> Mapping[str, str]:
        """The path of each adapter of a pool."""
        return {name: adapter.path for name, adapter in self.read().items() if pool in adapter.pools}

    def claim(self, name: str, adapter: LiveAdapter) -> bool:
        """Add `adapter`; False, and nothing has changed, where the name is taken."""
        existed = internal_kv._internal_kv_put(_key(name), _json(adapter), overwrite=False, namespace=NAMESPACE)
        return not existed

    def replace(self, name: str, adapter: LiveAdapter) -> None:
        internal_kv._internal_kv_put(_key(name), _json(adapter), overwrite=True, namespace=NAMESPACE)

    def remove(self, name: str) -> None:
        """Forget an adapter; nothing where there is none."""
        internal_kv._internal_kv_del(_key(name), namespace=NAMESPACE)


def _key(name: str) -> bytes:
    return PREFIX + name.encode()


def _name(key: bytes) -> str:
    return key.removeprefix(PREFIX).decode()


def _json(adapter: LiveAdapter) -> bytes:
    return adapter.model_dump_json().encode()
