"""What is used of TensorRT-LLM's Python API, and how an installed one differs from it.

Source: TensorRT-LLM 1.2's API reference and sources. Wherever the package can be imported, `differences` compares.
"""

import dataclasses
import inspect
from collections.abc import Mapping
from importlib import import_module
from typing import Any

VERSION = "1.2"
# By "module:name" or "module:class.method": the parameters that the adapter passes, all by name but `inputs`.
SIGNATURES: Mapping[str, tuple[str, ...]] = {
    "tensorrt_llm:LLM": ("model", "tokenizer", "tensor_parallel_size", "kwargs"),
    "tensorrt_llm:LLM.generate_async": ("inputs", "sampling_params", "lora_request", "streaming"),
    "tensorrt_llm:LLM.get_stats_async": ("timeout",),
    "tensorrt_llm:LLM.shutdown": (),
    "tensorrt_llm:LLM._check_health": (),
    "tensorrt_llm._tensorrt_engine:LLM": ("model", "tokenizer", "tensor_parallel_size", "kwargs"),
    "tensorrt_llm:SamplingParams": (
        "end_id",
        "pad_id",
        "max_tokens",
        "stop_token_ids",
        "top_k",
        "top_p",
        "seed",
        "temperature",
        "presence_penalty",
        "frequency_penalty",
        "logprobs",
        "guided_decoding",
        "detokenize",
        "add_special_tokens",
    ),
    "tensorrt_llm.llmapi:GuidedDecodingParams": ("json", "json_object"),
    "tensorrt_llm.executor:LoRARequest": ("lora_name", "lora_int_id", "lora_path"),
    "tensorrt_llm.executor:RequestError": (),
    "tensorrt_llm.executor:CppExecutorError": (),
    "tensorrt_llm.llmapi:RequestOutput.abort": (),
    "tensorrt_llm.llmapi:RequestOutput.finished": (),
    "tensorrt_llm.llmapi:CompletionOutput": ("token_ids", "logprobs", "finish_reason"),
}
# Defaults that the adapter overrides because they aren't OpenAI's; another value here needs another look.
DEFAULTS: Mapping[str, tuple[str, Any]] = {
    "tensorrt_llm:SamplingParams.max_tokens": ("max_tokens", 32),
    "tensorrt_llm:SamplingParams.seed": ("seed", None),
    "tensorrt_llm:SamplingParams.top_p": ("top_p", None),
    "tensorrt_llm:SamplingParams.top_k": ("top_k", None),
}


def differences() -> list[str]:
    """How the installed TensorRT-LLM differs from what the adapter was written to, a sentence each.

    Raises:
        ImportError: there is none here.
    """
    import_module("tensorrt_llm")
    found = [sentence for where, wanted in SIGNATURES.items() for sentence in _differs(where, wanted)]
    return found + [sentence for where, (name, value) in DEFAULTS.items() for sentence in _defaults(where, name, value)]


def _differs(where: str, wanted: tuple[str, ...]) -> list[str]:
    try:
        thing = _find(where)
    except (ImportError, AttributeError) as error:
        return [f"{where} isn't there: {error}"]
    if not wanted or isinstance(thing, property):
        return []
    have = tuple(_parameters(thing))
    missing = [name for name in wanted if name not in have]
    return [f"{where} has no parameter {', '.join(missing)}; it has {', '.join(have)}"] if missing else []


def _defaults(where: str, name: str, value: Any) -> list[str]:
    try:
        parameter = _parameters(_find(where.rpartition(".")[0])).get(name)
    except (ImportError, AttributeError):
        return []  # said already
    if parameter is None or parameter.default == value:
        return []
    return [f"{where} is {parameter.default!r} by default, not {value!r}"]


def _parameters(thing: Any) -> dict[str, inspect.Parameter]:
    if isinstance(thing, type) and dataclasses.is_dataclass(thing):
        thing = thing.__init__
    return {name: found for name, found in inspect.signature(thing).parameters.items() if name != "self"}


def _find(where: str) -> Any:
    module, _, names = where.partition(":")
    found = import_module(module)
    for name in names.split("."):
        found = getattr(found, name)
    return found
