"""Text Generation Inference's answers as OpenAI's. Pure functions of its documents.

Source: TGI 3.3's published API, and answers that its servers gave. An `id` is always empty there, a finish reason may
be one of its own or empty, choices come in any order, keys that are null or that OpenAI hasn't are among the rest.
"""

import json
import re
from collections.abc import Iterator
from typing import Any

from deployments.errors import ApiError

Document = dict[str, Any]

_FINISH = {"eos_token": "stop", "stop_sequence": "stop", "stop": "stop", "length": "length", "tool_calls": "tool_calls"}
_STATUS = {422: 400, 424: 500}  # validation; generation
_TOO_LONG = re.compile(r"tokens.*must be <=|must have less than \d+ tokens|inputs must have")
# Which of OpenAI's fields a message about one of TGI's parameters means.
_PARAMS = {
    "top_n_tokens": "top_logprobs",
    "temperature": "temperature",
    "top_p": "top_p",
    "stop": "stop",
    "seed": "seed",
    "grammar": "response_format",
    "frequency_penalty": "frequency_penalty",
    "presence_penalty": "presence_penalty",
    "max_new_tokens": "max_tokens",
    "adapter_id": "model",
    "tool": "tools",
    "template": "messages",
}


def finish_reason(reason: str | None) -> str | None:
    """In OpenAI's words; None while there is none, which TGI also writes as an empty string."""
    return _FINISH.get(reason, "stop") if reason else None


class Renamer:
    """One request's answers, with what clients expect in the place of TGI's own."""

    def __init__(self, request_id: str, model: str, *, chat: bool) -> None:
        self._id = f"{'chatcmpl' if chat else 'cmpl'}-{request_id}"
        self._model = model
        self._chat = chat
        self._began: set[int] = set()  # choices whose role was sent
        self._called: set[tuple[int, int]] = set()  # calls whose name was sent: choice and call
        self._calls: dict[int, str] = {}  # of choices that call a tool: the last call's arguments so far
        self._open: set[int] = set()  # choices whose finish reason hasn't come
        self._used: Document = {}  # tokens, added up over what was told
        self._last: Document = {}  # chunk

    def whole(self, document: Document) -> Document:
        """A whole answer."""
        choices = sorted(document["choices"], key=lambda choice: choice["index"])
        choice_of = self._whole_chat if self._chat else self._whole_completion
        return {**self._head(document), "choices": list(map(choice_of, choices)), "usage": document.get("usage")}

    def chunks(self, document: Document) -> Iterator[Document]:
        """What a chunk of a stream becomes: two, where the last piece of text comes with its finish reason."""
        head = self._last = self._head(document)
        for name, tokens in (document.get("usage") or {}).items():
            if isinstance(tokens, int):  # a chat tells at the end, a completion with the end of each choice
                self._used[name] = self._used.get(name, 0) + tokens
        for choice in document["choices"]:
            for part in self._chat_parts(choice) if self._chat else self._completion_parts(choice):
                yield {**head, "choices": [part]}

    def rest(self, include_usage: bool) -> Iterator[Document]:
        """What is missing at the end of a stream: of calls of tools the finish reason; and the usage, if asked for."""
        for index in sorted(self._open):
            # TGI's streams of calls end without a reason: what was cut off is no JSON.
            reason = "stop" if index not in self._calls else "tool_calls" if _is_json(self._calls[index]) else "length"
            yield {
                **self._last,
                "choices": [{"index": index, **self._empty, "logprobs": None, "finish_reason": reason}],
            }
        if include_usage and self._used:
            yield {**self._last, "choices": [], "usage": self._used}

    @property
    def _empty(self) -> Document:
        return {"delta": {}} if self._chat else {"text": ""}

    def _head(self, document: Document) -> Document:
        kept: Document = {
            name: document[name] for name in ("object", "created", "system_fingerprint") if name in document
        }
        return {"id": self._id, **kept, "model": self._model}

    def _whole_chat(self, choice: Document) -> Document:
        told = choice["message"]
        message: Document = {"role": told.get("role") or "assistant", "content": told.get("content"), "refusal": None}
        reason = finish_reason(choice.get("finish_reason"))
        if calls := told.get("tool_calls"):
            message["tool_calls"] = [self._whole_call(choice["index"], at, call) for at, call in enumerate(calls)]
            reason = "tool_calls" if reason == "stop" else reason
        return {"index": choice["index"], "message": message, "logprobs": _logprobs(choice), "finish_reason": reason}

    def _whole_call(self, choice: int, at: int, call: Document) -> Document:
        function = call["function"]
        return {
            "id": self._call_id(choice, at),
            "type": "function",
            "function": {"name": function["name"], "arguments": function["arguments"]},
        }

    def _call_id(self, choice: int, at: int) -> str:
        """TGI numbers the calls of each answer from 0; clients keep them for a whole conversation."""
        return f"call_{self._id.rpartition('-')[2]}_{choice}_{at}"

    def _whole_completion(self, choice: Document) -> Document:
        reason = finish_reason(choice.get("finish_reason"))
        return {"index": choice["index"], "text": choice["text"], "logprobs": None, "finish_reason": reason}

    def _chat_parts(self, choice: Document) -> Iterator[Document]:
        index, told = choice["index"], choice["delta"]
        delta: Document = {}
        if index not in self._began:
            self._began.add(index)
            delta["role"] = "assistant"
        if calls := told.get("tool_calls"):
            told_arguments = (call["function"].get("arguments") or "" for call in calls)
            self._calls[index] = self._calls.get(index, "") + "".join(told_arguments)
            delta["tool_calls"] = [self._call_part(index, call) for call in calls]
        elif told.get("content"):
            delta["content"] = told["content"]
        reason = finish_reason(choice.get("finish_reason"))
        self._open.add(index)
        if delta:
            yield {"index": index, "delta": delta, "logprobs": _logprobs(choice), "finish_reason": None}
        if reason:
            self._open.discard(index)
            reason = "tool_calls" if reason == "stop" and index in self._calls else reason
            yield {"index": index, "delta": {}, "logprobs": None, "finish_reason": reason}

    def _call_part(self, choice: int, call: Document) -> Document:
        at, function = call.get("index", 0), call["function"]
        part: Document = {"index": at, "function": {"arguments": function.get("arguments") or ""}}
        if (choice, at) not in self._called:
            self._called.add((choice, at))
            part |= {"id": self._call_id(choice, at), "type": "function"}
            part["function"] = {"name": function.get("name"), **part["function"]}
        return part

    def _completion_parts(self, choice: Document) -> Iterator[Document]:
        reason = finish_reason(choice.get("finish_reason"))
        (self._open.discard if reason else self._open.add)(choice["index"])
        yield {"index": choice["index"], "text": choice["text"], "logprobs": None, "finish_reason": reason}


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def _logprobs(choice: Document) -> Document | None:
    """TGI leaves out each token's bytes."""
    told = choice.get("logprobs")
    if not told or not told.get("content"):
        return None
    return {"content": [_token(token) for token in told["content"]], "refusal": None}


def _token(token: Document) -> Document:
    top = [_entry(each) for each in token.get("top_logprobs") or ()]
    return {**_entry(token), "top_logprobs": top}


def _entry(token: Document) -> Document:
    return {"token": token["token"], "logprob": token["logprob"], "bytes": list(token["token"].encode())}


def _is_about(parameter: str, message: str) -> bool:
    return f"`{parameter}" in message or f"{parameter} `" in message


def error(status: int, message: str, kind: str | None, prompt_field: str) -> ApiError:
    """A refusal or failure of TGI's in OpenAI's envelope. `kind` is its `error_type`."""
    if kind == "validation" or kind in ("template_error", "tool_error"):
        status = 422
    elif kind == "overloaded":
        status = 429
    status = _STATUS.get(status, status)
    if status >= 500:
        return ApiError(status, message, type="server_error", code=kind or "upstream_error")
    if status == 429:
        headers = {"retry-after": "5"}
        return ApiError(429, message, type="rate_limit_error", code="upstream_overloaded", headers=headers)
    if _TOO_LONG.search(message):
        return ApiError(status, message, param=prompt_field, code="context_length_exceeded")
    param = next((ours for theirs, ours in _PARAMS.items() if _is_about(theirs, message)), prompt_field)
    if (param, prompt_field) == ("top_logprobs", "prompt"):
        param = "logprobs"  # a completion's alternatives
    return ApiError(status, message, param=param, code="invalid_value")
