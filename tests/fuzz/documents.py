"""Requests of every endpoint that are as they should be: what mutations begin with."""

from collections.abc import Mapping
from typing import Any

from deployments.engine import Endpoint
from tests.fuzz.inputs import MARKER

Document = dict[str, Any]

HELLO = f"Hello {MARKER}"
USER = {"role": "user", "content": HELLO}
PARTS = {"role": "user", "content": [{"type": "text", "text": HELLO}]}
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
SCHEMA = {"type": "object", "properties": {"a": {"type": ["string", "null"]}}, "required": ["a"]}
TOOL = {"type": "function", "function": {"name": "look", "description": HELLO, "parameters": SCHEMA}}
SAMPLING = {"max_tokens": 3, "temperature": 0.5, "top_p": 0.9, "seed": 7, "n": 2, "stop": ["x", "yz"]}
HARMLESS = {"user": MARKER, "metadata": {"conversation_id": MARKER, "request_type": "chat"}}

CHAT: list[Document] = [
    {"messages": [USER]},
    {"messages": [{"role": "system", "content": "Be brief."}, USER, PARTS], **SAMPLING, **HARMLESS},
    {"messages": [USER], "stream": True, "stream_options": {"include_usage": True}, "max_tokens": 3},
    {"messages": [USER], "logprobs": True, "top_logprobs": 2, "max_completion_tokens": 3, "stream": True},
    {
        "model": "able",
        "messages": [USER],
        "max_tokens": 2,
        "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA, "strict": True}},
    },
    {
        "model": "able",
        "messages": [USER],
        "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {}}},
    },
    {"model": "own", "messages": [{"role": "user", "content": [IMAGE]}], "tools": [TOOL], "tool_choice": "auto"},
]
COMPLETIONS: list[Document] = [
    {"prompt": HELLO, "max_tokens": 3},
    {"prompt": [HELLO, "again"], "stream": True, "echo": True, "logprobs": 2, **SAMPLING},
    {"prompt": HELLO, "max_tokens": 2, "n": 16},
    {"prompt": [1, 2, 3], "max_tokens": 3, "best_of": 1, "suffix": ""},
    {"prompt": [[1, 2], [3]], "max_tokens": 3, "frequency_penalty": 0.5, "model": "able"},
]
DOCUMENTS: Mapping[Endpoint, list[Document]] = {
    "chat/completions": CHAT,
    "completions": COMPLETIONS,
    "responses": [{"model": "own", "input": HELLO, "instructions": HELLO, "max_output_tokens": 3, "stream": True}],
    "messages": [
        {"model": "own", "messages": [USER], "system": HELLO, "max_tokens": 3, "tool_choice": {"type": "auto"}}
    ],
    "embeddings": [{"model": "own", "input": [HELLO, "x"], "encoding_format": "base64", "dimensions": 3}],
    "score": [{"model": "own", "text_1": HELLO, "text_2": [HELLO]}],
    "rerank": [{"model": "own", "query": HELLO, "documents": [HELLO, {"text": "x"}], "top_n": 1}],
    "tokenize": [{"prompt": HELLO, "add_special_tokens": True}, {"messages": [USER], "add_generation_prompt": False}],
    "detokenize": [{"tokens": [1, 2, 3]}],
}
LOAD: list[Document] = [
    {"lora_name": "tuned", "lora_path": "tuned", "model": "able"},
    {"lora_name": "tuned-2", "lora_path": "tuned"},
]
UNLOAD: list[Document] = [{"lora_name": "tuned", "model": "able"}, {"lora_name": "tuned-2"}]
MODELS = ["m", "m", "able", "own", "prefix", "org/name@v1", "gpt-4o", "either", "mine", "tuned", "none"]

# Of which one has to be answered after each input.
GOOD: list[tuple[str, Document]] = [
    ("/v1/chat/completions", {"model": "m", "messages": [USER], "max_tokens": 2}),
    ("/v1/chat/completions", {"model": "able", "messages": [USER], "max_tokens": 2, "stream": True}),
    ("/v1/completions", {"model": "prefix", "prompt": HELLO, "max_tokens": 2}),
    ("/v1/messages", {"model": "own", "messages": [USER], "max_tokens": 2}),
    ("/v1/completions", {"model": "gpt-4o", "prompt": HELLO, "max_tokens": 2, "stream": True}),
    ("/tokenize", {"model": "org/name@v1", "prompt": HELLO}),
]
