"""What a check runs against: one model of one engine behind a server, and how to ask it."""

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import httpx

from deployments import registry
from tests.conformance.witness import Witness

Document = dict[str, Any]


class Refused(Exception):
    """The request was refused as it should be: a 400 that names the field and the engine."""


@dataclass(frozen=True, slots=True)
class Subject:
    """One model of one engine."""

    engine: str
    model: str
    client: httpx.AsyncClient
    capabilities: Mapping[str, Any]  # as `/v1/models` tells them of its pool
    witness: Witness | None = None  # None: only clients' ways lead to this server
    refusable: frozenset[str] = frozenset()  # fields whose refusal ends the check

    def has(self, need: str) -> bool:
        match need.split():
            case [kind, "tools"]:
                return kind in self.capabilities["tools"]
            case ["json_schema" | "logprobs" | "n" as name]:
                return bool(self.capabilities[name])
        return need in self.capabilities["endpoints"]

    @property
    def context_length(self) -> int:
        length: int | None = self.capabilities["context_length"]
        assert length is not None, "the server doesn't tell the model's context length"
        return length

    def allowing_refusal_of(self, fields: frozenset[str]) -> "Subject":
        return replace(self, refusable=fields)

    async def post(self, path: str, body: Document | bytes) -> httpx.Response:
        """Any answer, whatever its status.

        Raises:
            Refused: it is a refusal that ends the check.
        """
        content = body if isinstance(body, bytes) else json.dumps({"model": self.model, **body}).encode()
        response = await self.client.post(path, content=content, headers={"content-type": "application/json"})
        self.look_for_refusal(response)
        return response

    async def ask(self, path: str, body: Document) -> Document:
        """A whole answer."""
        response = await self.post(path, body)
        assert response.status_code == 200, f"{_told(path, body)} gives {response.status_code}: {response.text[:500]}"
        document: Document = response.json()
        return document

    async def stream(self, path: str, body: Document) -> list[Document]:
        """The documents of a stream, which must end with [DONE]."""
        async with self.lines(path, body) as lines:
            data = [line.removeprefix("data: ") async for line in lines if line]
        assert data[-1:] == ["[DONE]"], f"{_told(path, body)} ends with {data[-1:]}, not with [DONE]"
        return [json.loads(line) for line in data[:-1]]

    @asynccontextmanager
    async def lines(self, path: str, body: Document) -> AsyncIterator[AsyncIterator[str]]:
        """A stream's lines, to be read as far as one likes: leaving the block closes the connection."""
        document = {"model": self.model, **body, "stream": True}
        async with self.client.stream("POST", path, json=document) as response:
            if response.status_code != 200:
                await response.aread()
                self.look_for_refusal(response)
                raise AssertionError(f"{_told(path, document)} gives {response.status_code}: {response.text[:500]}")
            kind = response.headers["content-type"]
            assert kind.startswith("text/event-stream"), f"a stream's content-type is {kind}"
            yield response.aiter_lines()

    async def chat(self, messages: Any, **fields: Any) -> Document:
        return await self.ask("/v1/chat/completions", chat_body(messages, fields))

    async def chat_stream(self, messages: Any, **fields: Any) -> list[Document]:
        return await self.stream("/v1/chat/completions", chat_body(messages, fields))

    async def complete(self, prompt: Any, **fields: Any) -> Document:
        return await self.ask("/v1/completions", completion_body(prompt, fields))

    async def complete_stream(self, prompt: Any, **fields: Any) -> list[Document]:
        return await self.stream("/v1/completions", completion_body(prompt, fields))

    def look_for_refusal(self, response: httpx.Response) -> None:
        """
        Raises:
            Refused: it refuses a field that may be refused here, as it should.
        """
        if not self.refusable or response.status_code != 400:
            return
        error = response.json().get("error", {})
        if response.request.url.path == "/v1/messages":  # Anthropic's envelope has no param
            named = any(field in error.get("message", "") for field in self.refusable)
        else:
            named = error.get("param") in self.refusable
        if named:
            # Servers that run elsewhere refuse in the name of their own engine.
            names = registry.ENGINES if self.engine == "openai" else (self.engine,)
            message = error["message"]
            assert any(name in message for name in names), f"the refusal doesn't name the engine: {message}"
            raise Refused


def chat_body(messages: Any, fields: Mapping[str, Any]) -> Document:
    """A chat request, greedy and short unless `fields` say otherwise."""
    turns = [{"role": "user", "content": messages}] if isinstance(messages, str) else messages
    limits = {} if fields.keys() & {"max_tokens", "max_completion_tokens"} else {"max_tokens": 16}
    return {"messages": turns, "temperature": 0, **limits, **fields}


def completion_body(prompt: Any, fields: Mapping[str, Any]) -> Document:
    return {"prompt": prompt, "temperature": 0, "max_tokens": 16, **fields}


def _told(path: str, body: Document | bytes) -> str:
    """A request, to be told of and to be repeated."""
    text = body.decode(errors="replace") if isinstance(body, bytes) else json.dumps(body, ensure_ascii=False)
    return f"{path} {text if len(text) <= 1500 else text[:1500] + '…'}"
