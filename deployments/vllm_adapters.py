"""LoRA adapters in vLLM, with what it needs to be kept from. Imports vLLM only inside its methods."""

from collections import Counter
from pathlib import Path
from typing import Any

from deployments import lora
from deployments.engine import Adapter
from deployments.errors import ApiError


class VllmAdapters:
    """vLLM's register of adapters, `state.openai_serving_models`. Every method raises `ApiError` for a refusal."""

    def __init__(self, register: Any) -> None:
        self._register = register
        self._loads: Counter[Adapter] = Counter()
        self._folders: dict[str, Path] = {}  # of the adapters that are loaded

    async def load(self, adapter: Adapter) -> None:
        from vllm.entrypoints.serve.lora.protocol import LoadLoRAAdapterRequest

        # vLLM's prefix cache tells adapters apart by name and path: what is loaded anew must not find the old one's.
        path = f"{adapter.path}{'/.' * self._loads[adapter]}"
        request = LoadLoRAAdapterRequest(lora_name=adapter.name, lora_path=path)
        _raise_refusal(await self._register.load_lora_adapter(request))
        self._loads[adapter] += 1
        self._folders[adapter.name] = adapter.path

    async def unload(self, name: str) -> None:
        from vllm.entrypoints.serve.lora.protocol import UnloadLoRAAdapterRequest

        _raise_refusal(await self._register.unload_lora_adapter(UnloadLoRAAdapterRequest(lora_name=name)))
        del self._folders[name]

    def refuse_gone(self, adapter: str) -> None:
        """vLLM reads adapters that it doesn't hold in memory again, in its core, which dies of files that are gone."""
        if not all((self._folders[adapter] / name).is_file() for name in lora.FILES):
            message = f"The files of the adapter '{adapter}' are gone from the server; it has to be loaded again."
            raise ApiError(404, message, param="model", code="model_not_found")


def _raise_refusal(answer: Any) -> None:
    """vLLM answers with a sentence, or with an error."""
    if hasattr(answer, "error"):
        raise lora.refused(f"vLLM refuses the adapter: {answer.error.message}")
