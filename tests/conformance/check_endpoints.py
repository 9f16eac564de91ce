"""The other endpoints: models, tokens, embeddings, and other APIs than chat; and OpenAI's own clients."""

import asyncio
from typing import Any

import openai

from tests.conformance.reading import FRANCE, STORY, count_tokens, same, text_of
from tests.conformance.subject import Document, Subject
from tests.conformance.suite import check

MESSAGES: Any = [{"role": "user", "content": FRANCE}]


@check("models list")
async def models(subject: Subject) -> None:
    """/v1/models lists the model, with its engine and what it can; /v1/models/{id} has the same document."""
    listing = (await subject.client.get("/v1/models")).json()
    same("the object", listing["object"], "list")
    found = {document["id"]: document for document in listing["data"]}[subject.model]
    same("the object", found["object"], "model")
    same("the engines", found["engines"], [subject.engine])
    same("the single document", (await subject.client.get(f"/v1/models/{subject.model}")).json(), found)
    same("the status of a model that isn't there", (await subject.client.get("/v1/models/gpt-17")).status_code, 404)


@check("probes")
async def probes(subject: Subject) -> None:
    """/health and /ready say that the server is up, and /docs describes the API."""
    same("/health", (await subject.client.get("/health")).json(), {"status": "ok"})
    same("/ready", (await subject.client.get("/ready")).json()["ready"], True)
    same("the status of /docs", (await subject.client.get("/docs")).status_code, 200)
    assert "/v1/chat/completions" in (await subject.client.get("/openapi.json")).json()["paths"]


@check("OpenAI's client")
async def official(subject: Subject) -> None:
    """OpenAI's asynchronous Python client lists models, chats whole and streamed, and reads errors."""
    base = f"{subject.client.base_url}".rstrip("/") + "/v1"
    async with openai.AsyncOpenAI(base_url=base, api_key="none", max_retries=0, timeout=120) as client:
        assert subject.model in [model.id async for model in client.models.list()]
        create = client.chat.completions.create
        answer = await create(model=subject.model, messages=MESSAGES, temperature=0, max_tokens=8)
        text = answer.choices[0].message.content
        assert text and answer.usage and answer.usage.completion_tokens == 8
        stream = await create(model=subject.model, messages=MESSAGES, temperature=0, max_tokens=8, stream=True)
        parts = [chunk.choices[0].delta.content or "" async for chunk in stream]
        same("the streamed text", "".join(parts), text)
        await _errors(client, subject.model)


async def _errors(client: openai.AsyncOpenAI, model: str) -> None:
    create = client.chat.completions.create
    try:
        await create(model="gpt-17", messages=MESSAGES)
    except openai.NotFoundError as error:
        same("the code", error.code, "model_not_found")
    else:
        raise AssertionError("a model that isn't there answers")
    try:
        await create(model=model, messages=MESSAGES, n=0)
    except openai.BadRequestError as error:
        same("the param", error.param, "n")
    else:
        raise AssertionError("n: 0 is answered")


@check("OpenAI's synchronous client", needs=["completions"])
async def synchronous(subject: Subject) -> None:
    """OpenAI's synchronous Python client completes a text."""

    def complete() -> str:
        base = f"{subject.client.base_url}".rstrip("/") + "/v1"
        with openai.OpenAI(base_url=base, api_key="none", max_retries=0, timeout=120) as client:
            model = client.models.retrieve(subject.model).id
            answer = client.completions.create(model=model, prompt="Once upon a time", max_tokens=4, temperature=0)
            return answer.choices[0].text

    expected = text_of(await subject.complete("Once upon a time", max_tokens=4))
    same("the text", await asyncio.to_thread(complete), expected)


@check("tokenize a text and a conversation", needs=["tokenize"])
async def tokenize(subject: Subject) -> None:
    """/tokenize has the tokens of a text, and more of a conversation, whose template adds some."""
    text = await count_tokens(subject, prompt=FRANCE)
    assert 4 < text < 20, f"{FRANCE!r} is {text} tokens"
    conversation = await count_tokens(subject, messages=MESSAGES)
    assert conversation > text, f"the conversation is {conversation} tokens, its text {text}"


@check("detokenize refuses what is no token", needs=["detokenize"])
async def detokenize(subject: Subject) -> None:
    """/detokenize of a negative id, an id that the model doesn't have, and a text is a 400 that names tokens."""
    for tokens in ([-1], [10**7], "abc"):
        response = await subject.post("/detokenize", {"tokens": tokens})
        same(f"the status for {tokens!r}", response.status_code, 400)
        assert str(response.json()["error"]["param"]).startswith("tokens"), response.text


@check("embeddings", needs=["embeddings"])
async def embeddings(subject: Subject) -> None:
    """/v1/embeddings has a vector for each text, in order, and usage."""
    document = await subject.ask("/v1/embeddings", {"input": ["a cat", "a dog", "a cat"]})
    vectors = [item["embedding"] for item in document["data"]]
    same("the indexes", [item["index"] for item in document["data"]], [0, 1, 2])
    assert vectors[0] != vectors[1] and len(vectors[0]) == len(vectors[1]) > 8
    difference = max(abs(a - b) for a, b in zip(vectors[0], vectors[2], strict=True))
    assert difference < 1e-3, f"the same text's vectors differ by {difference}"
    assert document["usage"]["prompt_tokens"] > 0


@check("rerank", needs=["rerank"])
async def rerank(subject: Subject) -> None:
    """/v1/rerank orders documents by how well they fit the query, and says which is which."""
    body: Document = {"query": "A cat", "documents": ["Interest rates rose.", "A kitten"]}
    results = (await subject.ask("/v1/rerank", body))["results"]
    same("the order", [result["index"] for result in results], [1, 0])


@check("Responses API", needs=["responses"])
async def responses(subject: Subject) -> None:
    """/v1/responses answers with the text that chat has, and usage."""
    body: Document = {"input": FRANCE, "temperature": 0, "max_output_tokens": 8}
    document = await subject.ask("/v1/responses", body)
    same("the object", document["object"], "response")
    texts = [part["text"] for item in document["output"] for part in item.get("content") or [] if "text" in part]
    same("the text", "".join(texts), text_of(await subject.chat(FRANCE, max_tokens=8)))
    same("output_tokens", document["usage"]["output_tokens"], 8)


@check("Messages API", needs=["messages"])
async def messages(subject: Subject) -> None:
    """/v1/messages, Anthropic's, answers with the text that chat has, and its errors have Anthropic's form."""
    turns = [{"role": "user", "content": STORY}]
    document = await subject.ask("/v1/messages", {"messages": turns, "temperature": 0, "max_tokens": 8})
    same("the type and the role", (document["type"], document["role"]), ("message", "assistant"))
    text = "".join(block["text"] for block in document["content"] if block["type"] == "text")
    same("the text", text, text_of(await subject.chat(STORY, max_tokens=8)))
    same("the stop reason", document["stop_reason"], "max_tokens")
    response = await subject.post("/v1/messages", {"messages": MESSAGES, "max_tokens": "many"})
    same("the status", response.status_code, 400)
    same("the error's type", response.json()["type"], "error")


@check("Messages API in a stream", needs=["messages"])
async def messages_stream(subject: Subject) -> None:
    """A stream of /v1/messages begins and ends with Anthropic's events, and has the whole answer's text."""
    body: Document = {"messages": [{"role": "user", "content": STORY}], "temperature": 0, "max_tokens": 8}
    async with subject.lines("/v1/messages", body) as lines:
        events = [line.removeprefix("event: ") async for line in lines if line.startswith("event: ")]
    same("the first and the last event", (events[0], events[-1]), ("message_start", "message_stop"))
    assert "content_block_delta" in events, f"no text among {events}"
