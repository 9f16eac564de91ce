import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import aclosing
from typing import Any, cast

import pytest

from deployments.engine import EngineDeadError, EngineRequest, EngineResponse
from deployments.errors import ApiError
from deployments.openai_layer.layer import OpenAILayer, fit
from deployments.openai_layer.text import Tokenizer
from deployments.openai_layer.tokens import Guide, Sampling
from tests.deployments.openai_layer.fake_engine import FakeEngine

HELLO = [{"role": "user", "content": "Hello"}]
RENDERED = "<|start|>user\nHello<|end|><|start|>assistant\n"
ANSWER = "one 😀 two"
Document = dict[str, Any]


class Client:
    """Asks a layer over a scripted engine."""

    def __init__(self, engine: FakeEngine) -> None:
        self.engine = engine
        self.layer = OpenAILayer(engine, "served")

    def scripted(self, *answers: str) -> None:
        self.engine.answers = [self.engine.tokenizer.encode(answer) for answer in answers]

    async def chat(self, **fields: Any) -> EngineResponse:
        return await self._ask("chat/completions", {"model": "any", "messages": HELLO} | fields)

    async def complete(self, **fields: Any) -> EngineResponse:
        return await self._ask("completions", {"model": "any", "prompt": "Hello"} | fields)

    async def _ask(self, endpoint: Any, document: Document) -> EngineResponse:
        return await self.layer.handle(EngineRequest(endpoint, json.dumps(document).encode(), "id1"))

    async def refused(self, ask: Callable[..., Any], **fields: Any) -> ApiError:
        with pytest.raises(ApiError) as caught:
            await ask(**fields)
        assert caught.value.status == 400
        assert self.engine.calls == []
        return caught.value


@pytest.fixture
def client(tokenizer: Tokenizer) -> Iterator[Client]:
    client = Client(FakeEngine(tokenizer))
    client.scripted(ANSWER)
    yield client
    client.layer.close()


def whole(response: EngineResponse) -> Document:
    assert (response.status, response.media_type) == (200, "application/json")
    assert isinstance(response.body, bytes)
    document: Document = json.loads(response.body)
    return document


def chunks_of(response: EngineResponse) -> AsyncGenerator[bytes]:
    assert (response.status, response.media_type) == (200, "text/event-stream")
    return cast("AsyncGenerator[bytes]", response.body)


async def events(chunks: AsyncIterator[bytes]) -> list[Any]:
    """The documents of a stream, each event whole in one piece or several in one; `[DONE]` as a string."""
    found: list[Any] = []
    async for chunk in chunks:
        assert chunk.endswith(b"\n\n")
        for event in chunk.decode().removesuffix("\n\n").split("\n\n"):
            data = event.removeprefix("data: ")
            assert data != event
            found.append(data if data == "[DONE]" else json.loads(data))
    return found


async def streamed(response: EngineResponse) -> list[Document]:
    *documents, done = await events(chunks_of(response))
    assert done == "[DONE]"
    return documents


def of_choice(documents: list[Document], index: int) -> list[Document]:
    choices = [choice for document in documents for choice in document["choices"] if choice["index"] == index]
    assert choices
    return choices


def chat_text(documents: list[Document], index: int = 0) -> str:
    return "".join(choice["delta"].get("content", "") for choice in of_choice(documents, index))


def completion_text(documents: list[Document], index: int = 0) -> str:
    return "".join(choice["text"] for choice in of_choice(documents, index))


async def test_a_whole_chat_answer(client: Client) -> None:
    document = whole(await client.chat())
    created = document.pop("created")
    assert isinstance(created, int)
    prompt, answer = len(client.engine.calls[0][0]), client.engine.generated
    assert document == {
        "id": "chatcmpl-id1",
        "object": "chat.completion",
        "model": "served",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": ANSWER, "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "usage": {"prompt_tokens": prompt, "completion_tokens": answer, "total_tokens": prompt + answer},
    }


async def test_a_whole_completion(client: Client) -> None:
    document = whole(await client.complete(max_tokens=100))
    created = document.pop("created")
    assert isinstance(created, int)
    prompt, answer = len(client.engine.tokenizer.encode("Hello")), client.engine.generated
    assert document == {
        "id": "cmpl-id1",
        "object": "text_completion",
        "model": "served",
        "choices": [{"index": 0, "text": ANSWER, "logprobs": None, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": prompt, "completion_tokens": answer, "total_tokens": prompt + answer},
    }


async def test_a_streamed_chat_answer(client: Client) -> None:
    first, *middle, last = await streamed(await client.chat(stream=True))
    for document in (first, *middle, last):
        assert {key: value for key, value in document.items() if key not in ("choices", "created")} == {
            "id": "chatcmpl-id1",
            "object": "chat.completion.chunk",
            "model": "served",
        }
        assert document["created"] == first["created"]
    opening = {"role": "assistant", "content": ""}
    assert first["choices"] == [{"index": 0, "delta": opening, "logprobs": None, "finish_reason": None}]
    for document in middle:
        (choice,) = document["choices"]
        assert choice["delta"].keys() == {"content"}
        assert choice["delta"]["content"]
        assert choice["finish_reason"] is None
    assert last["choices"] == [{"index": 0, "delta": {}, "logprobs": None, "finish_reason": "stop"}]
    assert chat_text(middle) == ANSWER


async def test_a_streamed_completion(client: Client) -> None:
    *parts, last = await streamed(await client.complete(stream=True, max_tokens=100))
    for document in (*parts, last):
        assert (document["id"], document["object"], document["model"]) == ("cmpl-id1", "text_completion", "served")
        assert "usage" not in document
    assert all(choice["text"] and choice["finish_reason"] is None for part in parts for choice in part["choices"])
    assert last["choices"] == [{"index": 0, "text": "", "logprobs": None, "finish_reason": "stop"}]
    assert completion_text(parts) == ANSWER


@pytest.mark.parametrize(
    "fields",
    [{}, {"max_tokens": 2}, {"stop": " two"}, {"stop": ["😀", "zzz"]}, {"n": 3}, {"n": 2, "max_tokens": 1}],
    ids=str,
)
async def test_stream_and_whole_agree(client: Client, fields: dict[str, Any]) -> None:
    client.scripted(ANSWER, "three", "日本")
    document = whole(await client.chat(**fields))
    client.engine.calls.clear()
    documents = await streamed(await client.chat(**fields, stream=True, stream_options={"include_usage": True}))
    for choice in document["choices"]:
        assert chat_text(documents, choice["index"]) == choice["message"]["content"]
        assert of_choice(documents, choice["index"])[-1]["finish_reason"] == choice["finish_reason"]
    assert documents[-1]["usage"] == document["usage"]


@pytest.mark.parametrize("options", [None, {}, {"include_usage": False}])
async def test_no_usage_chunk_unless_asked_for(client: Client, options: Document | None) -> None:
    documents = await streamed(await client.chat(stream=True, stream_options=options))
    assert all(len(document["choices"]) == 1 and "usage" not in document for document in documents)


async def test_the_usage_chunk_comes_last_and_without_choices(client: Client) -> None:
    options = {"include_usage": True}
    for kind, response in (
        ("chat.completion.chunk", await client.chat(stream=True, stream_options=options)),
        ("text_completion", await client.complete(stream=True, stream_options=options)),
    ):
        *documents, last = await streamed(response)
        assert all(document["choices"] for document in documents)
        assert (last["object"], last["choices"]) == (kind, [])
        assert last["usage"]["completion_tokens"] > 0
        assert last["usage"].keys() == {"prompt_tokens", "completion_tokens", "total_tokens"}


async def test_n_choices_with_a_seed_each(client: Client) -> None:
    client.scripted("one", "two", "three")
    document = whole(await client.chat(n=3, seed=7))
    assert [choice["index"] for choice in document["choices"]] == [0, 1, 2]
    assert [choice["message"]["content"] for choice in document["choices"]] == ["one", "two", "three"]
    assert [sampling.seed for _, sampling in client.engine.calls] == [7, 8, 9]
    assert len({tuple(prompt) for prompt, _ in client.engine.calls}) == 1
    prompt = len(client.engine.calls[0][0])
    usage = {"prompt_tokens": prompt, "completion_tokens": client.engine.generated}
    assert document["usage"] == usage | {"total_tokens": prompt + client.engine.generated}


async def test_n_choices_without_a_seed(client: Client) -> None:
    await client.chat(n=2)
    assert [sampling.seed for _, sampling in client.engine.calls] == [None, None]


async def test_n_choices_stream_side_by_side(client: Client) -> None:
    client.scripted("one two three", "four five", "six")
    documents = await streamed(await client.chat(n=3, stream=True))
    openings = [document["choices"][0] for document in documents[:3]]
    assert [choice["index"] for choice in openings] == [0, 1, 2]
    assert all(choice["delta"] == {"role": "assistant", "content": ""} for choice in openings)
    for index, text in enumerate(["one two three", "four five", "six"]):
        assert chat_text(documents, index) == text
        reasons = [choice["finish_reason"] for choice in of_choice(documents, index)]
        assert reasons == [None] * (len(reasons) - 1) + ["stop"]
    order = [document["choices"][0]["index"] for document in documents[3:]]
    assert order != sorted(order)


async def test_several_prompts_with_several_choices(client: Client) -> None:
    client.scripted("one", "two", "three", "four")
    encode = client.engine.tokenizer.encode
    document = whole(await client.complete(prompt=["Hello", encode("fox")], n=2, seed=1, echo=True))
    texts = ["Helloone", "Hellotwo", "foxthree", "foxfour"]
    assert [choice["text"] for choice in document["choices"]] == texts
    assert [choice["index"] for choice in document["choices"]] == [0, 1, 2, 3]
    prompts = [encode("Hello")] * 2 + [encode("fox")] * 2
    assert [prompt for prompt, _ in client.engine.calls] == prompts
    assert [sampling.seed for _, sampling in client.engine.calls] == [1, 2, 1, 2]
    assert document["usage"]["prompt_tokens"] == len(encode("Hello")) + len(encode("fox"))
    client.engine.calls.clear()
    documents = await streamed(await client.complete(prompt=["Hello", encode("fox")], n=2, echo=True, stream=True))
    assert [completion_text(documents, index) for index in range(4)] == texts


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, {"temperature": 1.0, "top_p": 1.0, "seed": None}),
        ({"temperature": 0, "top_p": 0.5, "seed": 3}, {"temperature": 0, "top_p": 0.5, "seed": 3}),
        ({"temperature": 1.5, "seed": 0}, {"temperature": 1.5, "top_p": 1.0, "seed": 0}),
    ],
)
async def test_sampling(client: Client, fields: Document, expected: Document) -> None:
    await client.chat(**fields, max_tokens=5)
    await client.complete(**fields, max_tokens=5)
    assert [sampling for _, sampling in client.engine.calls] == [Sampling(max_tokens=5, **expected)] * 2


@pytest.mark.parametrize("honours", [(), ("frequency_penalty", "presence_penalty", "response_format")])
async def test_what_an_engine_honours_reaches_it_and_the_rest_is_refused(client: Client, honours: Any) -> None:
    client.layer = OpenAILayer(client.engine, "served", honours)
    asked: Document = {"frequency_penalty": 0.5, "presence_penalty": -1, "response_format": {"type": "json_object"}}
    for field, value in asked.items():
        if not honours:
            assert (await client.refused(client.chat, **{field: value})).param == field
    if honours:
        await client.chat(**asked)
        await client.complete(frequency_penalty=2)
        found = [sampling for _, sampling in client.engine.calls]
        assert (found[0].frequency_penalty, found[0].presence_penalty) == (0.5, -1)
        assert (found[0].guide, found[1].guide, found[1].frequency_penalty) == (Guide("json_object"), None, 2)


async def test_an_adapter_generates_and_names_its_answers(client: Client) -> None:
    for endpoint, prompt in (("chat/completions", {"messages": HELLO}), ("completions", {"prompt": "Hello"})):
        body = json.dumps({"model": "any", **prompt}).encode()
        answer = await client.layer.handle(EngineRequest(cast("Any", endpoint), body, "id1", "poet"))
        assert whole(answer)["model"] == "poet"
    assert [sampling.adapter for _, sampling in client.engine.calls] == ["poet", "poet"]


async def test_most_tokens_of_a_chat_answer(client: Client) -> None:
    await client.chat()
    await client.chat(max_tokens=5)
    await client.chat(max_completion_tokens=6)
    await client.chat(max_tokens=5, max_completion_tokens=6)
    left = client.engine.context_length - len(client.engine.calls[0][0])
    assert [sampling.max_tokens for _, sampling in client.engine.calls] == [left, 5, 6, 6]


async def test_most_tokens_of_a_completion(client: Client) -> None:
    await client.complete()
    await client.complete(max_tokens=5)
    assert [sampling.max_tokens for _, sampling in client.engine.calls] == [16, 5]


async def test_max_tokens_cuts_an_answer(client: Client) -> None:
    document = whole(await client.chat(max_tokens=1))
    assert document["choices"][0]["finish_reason"] == "length"
    assert document["usage"]["completion_tokens"] == 1


async def test_the_conversation_goes_through_the_model_s_template(client: Client) -> None:
    await client.chat()
    prompt, _ = client.engine.calls[0]
    assert client.engine.tokenizer.decode(prompt) == RENDERED
    assert prompt[0] == 1  # one token, not the nine of its characters


async def test_a_template_writes_its_special_tokens_itself(tokenizer_with_start: Tokenizer) -> None:
    client = Client(FakeEngine(tokenizer_with_start))
    await client.chat()
    await client.complete()
    prompts = [tokenizer_with_start.decode(prompt) for prompt, _ in client.engine.calls]
    assert prompts == [RENDERED, "<|start|>Hello"]
    client.layer.close()


@pytest.mark.parametrize("role", ["system", "developer"])
async def test_a_developer_is_a_system(client: Client, role: str) -> None:
    parts = [{"type": "text", "text": "Be "}, {"type": "text", "text": "brief."}]
    await client.chat(messages=[{"role": role, "content": parts}, *HELLO])
    prompt, _ = client.engine.calls[0]
    assert client.engine.tokenizer.decode(prompt) == f"<|start|>system\nBe brief.<|end|>{RENDERED}"


async def test_a_template_s_refusal_is_the_client_s_fault(client: Client, tokenizer: Tokenizer) -> None:
    class Fussy:
        """A tokenizer whose template wants no system message."""

        def apply_chat_template(self, conversation: list[dict[str, str]], **kwargs: Any) -> Any:
            template = "{{ raise_exception('System role not supported') }}"
            return tokenizer.apply_chat_template(conversation, chat_template=template, **kwargs)

    client.engine.tokenizer = cast("Tokenizer", Fussy())
    error = await client.refused(client.chat)
    assert (error.param, error.code) == ("messages", "invalid_value")
    assert error.message == "The model's chat template refuses these messages: System role not supported"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_prompt_of_no_tokens_is_refused(client: Client, stream: bool) -> None:
    for prompt in ("", [""], ["Hello", ""]):
        error = await client.refused(client.complete, prompt=prompt, stream=stream)
        assert (error.param, error.code, error.message) == ("prompt", "invalid_value", "'prompt' has no tokens.")


async def test_tokens_outside_the_vocabulary_are_refused(client: Client, tokenizer: Tokenizer) -> None:
    size = len(tokenizer)
    await client.complete(prompt=[size - 1])
    client.engine.calls.clear()
    for prompt in ([0, size], [[0], [size]]):
        error = await client.refused(client.complete, prompt=prompt, echo=True)
        assert (error.param, error.code) == ("prompt", "invalid_value")
        assert error.message == f"Token id {size} in 'prompt' is outside this model's vocabulary of {size}."


@pytest.mark.parametrize("stream", [False, True])
async def test_a_prompt_as_long_as_the_context_is_refused_with_both_numbers(client: Client, stream: bool) -> None:
    client.engine.context_length = 10
    error = await client.refused(client.complete, prompt=[5] * 10, stream=stream)
    assert (error.param, error.code) == ("prompt", "context_length_exceeded")
    assert error.message == "This model's maximum context length is 10 tokens, but 'prompt' has 10 tokens."


async def test_more_tokens_than_the_context_leaves_are_refused_with_all_numbers(client: Client) -> None:
    await client.chat(max_tokens=1)
    used = len(client.engine.calls.pop()[0])
    client.engine.context_length = used + 4
    error = await client.refused(client.chat, max_tokens=5)
    assert (error.param, error.code) == ("messages", "context_length_exceeded")
    assert error.message == (
        f"This model's maximum context length is {used + 4} tokens, but {used + 5} were requested: "
        f"{used} in 'messages' and 5 to generate."
    )
    await client.chat(max_tokens=4)


async def test_the_most_tokens_that_may_be_asked_for_are_refused_as_any(client: Client) -> None:
    error = await client.refused(client.chat, max_tokens=2**63 - 1)
    assert error.code == "context_length_exceeded"


async def test_hopelessly_long_text_is_refused_before_it_is_encoded(client: Client, tokenizer: Tokenizer) -> None:
    class Counting:
        """A tokenizer that counts what it encodes."""

        encoded = 0

        def __getattr__(self, name: str) -> Any:
            return getattr(tokenizer, name)

        def __len__(self) -> int:
            return len(tokenizer)

        def encode(self, text: str, **kwargs: Any) -> list[int]:
            self.encoded += 1
            return tokenizer.encode(text, **kwargs)

    counting = Counting()
    client.engine.tokenizer = cast("Tokenizer", counting)
    longest = max(map(len, tokenizer.get_vocab()))
    text = "x" * longest * (client.engine.context_length + 1)
    for param, ask, field in (
        ("prompt", client.complete, {"prompt": text}),
        ("messages", client.chat, {"messages": [{"role": "user", "content": text}]}),
    ):
        error = await client.refused(ask, **field)
        assert (error.param, error.code) == (param, "context_length_exceeded")
        assert str(client.engine.context_length) in error.message
    assert counting.encoded == 0
    await client.refused(client.complete, prompt=text[longest:])
    assert counting.encoded == 1


async def test_text_of_the_longest_tokens_fits_to_the_last(client: Client, tokenizer: Tokenizer) -> None:
    """Every token a longest one: what is refused unread must really not fit."""
    special = max(tokenizer.get_vocab(), key=len)
    client.engine.context_length = 20
    await client.complete(prompt=special * 19, max_tokens=1)
    assert len(client.engine.calls[0][0]) == 19


@pytest.mark.parametrize(
    ("prompt_tokens", "max_tokens", "fitting"), [(1, None, 9), (9, None, 1), (1, 9, 9), (9, 1, 1), (5, 2, 2)]
)
def test_fit(prompt_tokens: int, max_tokens: int | None, fitting: int) -> None:
    assert fit(prompt_tokens, max_tokens, 10, "prompt") == fitting


@pytest.mark.parametrize(("prompt_tokens", "max_tokens"), [(10, None), (11, None), (10, 1), (9, 2), (1, 10), (0, 1)])
def test_fit_refuses(prompt_tokens: int, max_tokens: int | None) -> None:
    with pytest.raises(ApiError) as caught:
        fit(prompt_tokens, max_tokens, 10, "prompt")
    assert (caught.value.status, caught.value.param) == (400, "prompt")


def top_two(token_id: int) -> tuple[tuple[int, float], ...]:
    return (token_id, -0.5), (5, -2.0)


@pytest.mark.parametrize(
    ("fields", "asked"),
    [
        ({}, None),
        ({"logprobs": False}, None),
        ({"logprobs": True}, 0),
        ({"logprobs": True, "top_logprobs": None}, 0),
        ({"logprobs": True, "top_logprobs": 0}, 0),
        ({"logprobs": True, "top_logprobs": 5}, 5),
    ],
)
async def test_what_a_chat_s_log_probabilities_ask_of_the_engine(
    client: Client, fields: Document, asked: int | None
) -> None:
    document = whole(await client.chat(**fields))
    assert client.engine.calls[0][1].logprobs == asked
    assert (document["choices"][0]["logprobs"] is None) is (asked is None)


@pytest.mark.parametrize("asked", [None, 0, 5])
async def test_what_a_completion_s_log_probabilities_ask_of_the_engine(client: Client, asked: int | None) -> None:
    document = whole(await client.complete(logprobs=asked))
    assert client.engine.calls[0][1].logprobs == asked
    assert (document["choices"][0]["logprobs"] is None) is (asked is None)


async def test_a_chat_s_log_probabilities(client: Client) -> None:
    client.scripted("aé")
    client.engine.top = top_two
    logprobs = whole(await client.chat(logprobs=True, top_logprobs=2))["choices"][0]["logprobs"]
    assert logprobs.keys() == {"content", "refusal"}
    a, first_half, second_half = logprobs["content"]
    assert a.keys() == {"token", "logprob", "bytes", "top_logprobs"}
    assert (a["token"], a["logprob"], a["bytes"]) == ("a", -0.5, [97])
    assert (first_half["token"], first_half["logprob"], first_half["bytes"]) == ("bytes:\\xc3", -1.0, [0xC3])
    assert (second_half["token"], second_half["bytes"]) == ("bytes:\\xa9", [0xA9])
    assert a["top_logprobs"][0] == {"token": "a", "logprob": -0.5, "bytes": [97]}
    assert [entry["logprob"] for entry in a["top_logprobs"]] == [-0.5, -2.0]


async def test_log_probabilities_without_alternatives(client: Client) -> None:
    logprobs = whole(await client.chat(logprobs=True))["choices"][0]["logprobs"]
    assert all(token["top_logprobs"] == [] for token in logprobs["content"])


async def test_a_chat_stream_s_log_probabilities_are_the_whole_s(client: Client) -> None:
    expected = whole(await client.chat(logprobs=True))["choices"][0]["logprobs"]["content"]
    documents = await streamed(await client.chat(logprobs=True, stream=True))
    got = [choice["logprobs"] for choice in of_choice(documents, 0)]
    assert [token for logprobs in got if logprobs for token in logprobs["content"]] == expected
    assert (got[0], got[-1]) == (None, None)
    texts = [choice["delta"].get("content", "") for choice in of_choice(documents, 0)]
    for text, logprobs in zip(texts[1:-1], got[1:-1], strict=True):
        assert b"".join(bytes(token["bytes"]) for token in logprobs["content"]).decode() == text


async def test_a_completion_s_log_probabilities(client: Client) -> None:
    client.scripted("a😀b")
    client.engine.top = top_two
    logprobs = whole(await client.complete(logprobs=2, echo=True))["choices"][0]["logprobs"]
    assert logprobs.keys() == {"tokens", "token_logprobs", "top_logprobs", "text_offset"}
    assert logprobs["tokens"] == ["a", "bytes:\\xf0", "bytes:\\x9f", "bytes:\\x98", "bytes:\\x80", "b"]
    assert logprobs["token_logprobs"] == [-0.5, -1.0, -1.5, -2.0, -2.5, -3.0]
    assert logprobs["text_offset"] == [len("Hello") + start for start in (0, 1, 1, 1, 1, 2)]
    assert logprobs["top_logprobs"][0]["a"] == -0.5
    assert len(logprobs["top_logprobs"][0]) == 2


async def test_a_completion_stream_s_log_probabilities_are_the_whole_s(client: Client) -> None:
    client.scripted("a😀b", "日本")
    fields: Document = {"logprobs": 0, "echo": True, "n": 2}
    document = whole(await client.complete(**fields))
    client.engine.calls.clear()
    documents = await streamed(await client.complete(**fields, stream=True))
    for choice in document["choices"]:
        parts = [part["logprobs"] for part in of_choice(documents, choice["index"])]
        for key, expected in choice["logprobs"].items():
            assert [value for part in parts for value in part[key]] == expected
        assert choice["logprobs"]["top_logprobs"] == [None] * len(choice["logprobs"]["tokens"])


async def test_offsets_point_into_the_text(client: Client) -> None:
    client.scripted("one 日本 two")
    choice = whole(await client.complete(logprobs=0, max_tokens=50))["choices"][0]
    for token, offset in zip(choice["logprobs"]["tokens"], choice["logprobs"]["text_offset"], strict=True):
        if not token.startswith("bytes:"):
            assert choice["text"][offset:].startswith(token)


@pytest.mark.parametrize("echo", [None, False])
async def test_no_echo_unless_asked_for(client: Client, echo: bool | None) -> None:
    assert whole(await client.complete(echo=echo, max_tokens=100))["choices"][0]["text"] == ANSWER


async def test_a_stop_string_is_not_sent(client: Client) -> None:
    client.scripted("one two three")
    document = whole(await client.chat(stop=["o th", "zzz"]))
    assert document["choices"][0]["message"]["content"] == "one tw"
    assert document["choices"][0]["finish_reason"] == "stop"
    documents = await streamed(await client.chat(stop=["o th", "zzz"], stream=True))
    assert chat_text(documents) == "one tw"


async def test_an_answer_of_no_text_is_still_an_answer(client: Client) -> None:
    client.scripted("")
    document = whole(await client.chat())
    assert (document["choices"][0]["message"]["content"], document["choices"][0]["finish_reason"]) == ("", "stop")
    first, last = await streamed(await client.chat(stream=True))
    assert first["choices"][0]["delta"]["role"] == "assistant"
    assert last["choices"][0]["finish_reason"] == "stop"


async def test_text_is_not_escaped(client: Client) -> None:
    response = await client.chat()
    assert isinstance(response.body, bytes)
    assert "😀".encode() in response.body
    assert "😀".encode() in b"".join([chunk async for chunk in chunks_of(await client.chat(stream=True))])


async def test_no_chunk_is_empty(client: Client) -> None:
    for ask in (client.chat, client.complete):
        assert all([chunk async for chunk in chunks_of(await ask(stream=True))])


@pytest.mark.parametrize("n", [1, 3])
async def test_an_engine_that_fails_before_its_first_token_raises(client: Client, n: int) -> None:
    client.engine.failure = EngineDeadError("gone")
    with pytest.raises(EngineDeadError, match="gone"):
        await client.chat(n=n)
    stream = chunks_of(await client.chat(n=n, stream=True))
    with pytest.raises(EngineDeadError, match="gone"):
        await anext(stream)
    assert client.engine.running == 0


@pytest.mark.parametrize("n", [1, 3])
async def test_an_engine_that_fails_later_ends_the_stream_with_an_error(client: Client, n: int) -> None:
    client.engine.failure, client.engine.fails_after = RuntimeError("secret path"), 2
    *documents, error = await events(chunks_of(await client.chat(n=n, stream=True)))
    assert error == {
        "error": {
            "message": "The engine failed while it answered.",
            "type": "server_error",
            "param": None,
            "code": "engine_error",
        }
    }
    assert chat_text(documents)
    assert all(choice["finish_reason"] is None for document in documents for choice in document["choices"])
    assert client.engine.running == 0


async def test_an_engine_that_dies_later_is_told_to_the_replica(client: Client) -> None:
    client.engine.failure, client.engine.fails_after = EngineDeadError("gone"), 2
    stream = chunks_of(await client.chat(stream=True))
    with pytest.raises(EngineDeadError, match="gone"):
        [chunk async for chunk in stream]
    assert client.engine.running == 0


async def test_an_engine_that_fails_later_fails_a_whole_answer(client: Client) -> None:
    client.engine.failure, client.engine.fails_after = EngineDeadError("gone"), 2
    with pytest.raises(EngineDeadError, match="gone"):
        await client.chat(n=3)
    await asyncio.sleep(0)
    assert client.engine.running == 0


@pytest.mark.parametrize("stream", [False, True])
async def test_one_choice_s_failure_aborts_the_others(client: Client, stream: bool) -> None:
    client.engine.failure, client.engine.fails_after, client.engine.failing_call = RuntimeError("gone"), 3, 1
    client.engine.hangs_after = 3
    if stream:
        *_, error = await events(chunks_of(await client.chat(n=3, stream=True)))
        assert "error" in error
    else:
        with pytest.raises(RuntimeError, match="gone"):
            await client.chat(n=3)
    await asyncio.sleep(0)
    assert len(client.engine.calls) == 3
    assert client.engine.running == 0


@pytest.mark.parametrize("n", [1, 3])
async def test_closing_a_stream_aborts_every_choice(client: Client, n: int) -> None:
    client.scripted("one two three four five " * 5)
    async with aclosing(chunks_of(await client.chat(n=n, stream=True))) as stream:
        await anext(stream)
        await anext(stream)
        assert client.engine.running == n
    assert client.engine.running == 0
    assert client.engine.generated < 50


@pytest.mark.parametrize("n", [1, 3])
async def test_cancelling_a_stream_s_reader_aborts_every_choice(client: Client, n: int) -> None:
    client.engine.hangs_after = 2

    async def read() -> None:
        async with aclosing(chunks_of(await client.chat(n=n, stream=True))) as stream:
            async for _ in stream:
                pass

    await cancel_while_it_hangs(client, asyncio.create_task(read()), n)


@pytest.mark.parametrize("n", [1, 3])
async def test_cancelling_a_whole_answer_aborts_every_choice(client: Client, n: int) -> None:
    client.engine.hangs_after = 2
    await cancel_while_it_hangs(client, asyncio.create_task(client.chat(n=n)), n)


async def cancel_while_it_hangs(client: Client, task: "asyncio.Task[Any]", n: int) -> None:
    await asyncio.wait_for(client.engine.hanging.wait(), 60)
    for _ in range(20):
        await asyncio.sleep(0)
    assert client.engine.running == n
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.sleep(0)
    assert client.engine.running == 0


async def test_a_stream_that_nobody_reads_generates_nothing(client: Client) -> None:
    await chunks_of(await client.chat(stream=True)).aclose()
    assert client.engine.calls == []


async def test_requests_run_side_by_side(client: Client) -> None:
    client.scripted("one", "two", "three")
    documents = await asyncio.gather(*(client.chat() for _ in range(3)))
    texts = {whole(response)["choices"][0]["message"]["content"] for response in documents}
    assert texts == {"one", "two", "three"}


@pytest.mark.parametrize(("ask", "param"), [("chat", "messages"), ("complete", "prompt")], ids=["chat", "completions"])
async def test_a_bad_request_is_refused_before_the_engine_sees_it(client: Client, ask: str, param: str) -> None:
    error = await client.refused(getattr(client, ask), **{param: None})
    assert error.param == param
    error = await client.refused(getattr(client, ask), frequency_penalty=1)
    assert error.message == "'frequency_penalty' is not supported by the scripted engine."
