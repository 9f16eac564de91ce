"""Tool calls: forced, chosen by the model, several, cut short. Examples in the prompt make a small model call."""

import json
from typing import Any

from tests.conformance.reading import (
    choices_of,
    finish_of,
    needs_a_model,
    same,
    streamed_finish,
    streamed_text,
    text_of,
)
from tests.conformance.subject import Document, Subject
from tests.conformance.suite import check

CHAT = "/v1/chat/completions"


def tool(name: str, argument: str) -> dict[str, Any]:
    parameters = {
        "type": "object",
        "properties": {argument: {"type": "string"}},
        "required": [argument],
        "additionalProperties": False,
    }
    description = f"Get the {name.removeprefix('get_')} of a place"
    function = {"name": name, "description": description, "parameters": parameters, "strict": True}
    return {"type": "function", "function": function}


WEATHER, TIME = tool("get_weather", "city"), tool("get_time", "zone")


def choosing(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


def _called(*cities: str) -> str:
    calls = (f'{{"name": "get_weather", "arguments": {{"city": "{city}"}}}}' for city in cities)
    return "\n".join(f"<tool_call>\n{call}\n</tool_call>" for call in calls)


def asking(*places: tuple[str, ...]) -> list[dict[str, str]]:
    """A conversation whose last question is of the last places, the others answered by calls."""
    turns = [{"role": "system", "content": "Answer every question with a call of the tool get_weather."}]
    for cities in places:
        turns.append({"role": "user", "content": f"What is the weather in {' and '.join(cities)}?"})
        turns.append({"role": "assistant", "content": _called(*cities)})
    return turns[:-1]


ONE = asking(("Paris",), ("London",), ("Rome",), ("Berlin",))
TWO = asking(("Paris", "London"), ("Rome", "Madrid"), ("Berlin", "Vienna"))


def _is_the_model_s_choice(subject: Subject) -> None:
    """Whether a tool is called, where tools can be asked for at all: else the refusal is what is looked at."""
    if subject.has("auto tools"):
        needs_a_model(subject, "whether a tool is called is the model's choice")


def calls_of(document: Document) -> list[tuple[str, Any]]:
    """The name and the arguments of each call."""
    calls = document["choices"][0]["message"].get("tool_calls") or []
    return [_read(call["function"]["name"], call["function"]["arguments"]) for call in calls]


def streamed_calls(chunks: list[Document]) -> list[tuple[str, Any]]:
    """The calls of a stream, joined by index as clients do."""
    joined: dict[int, dict[str, str]] = {}
    for choice in choices_of(chunks):
        for part in choice["delta"].get("tool_calls") or []:
            call = joined.setdefault(part["index"], {"id": "", "name": "", "arguments": ""})
            call["id"] += part.get("id") or ""
            call["name"] += part["function"].get("name") or ""
            call["arguments"] += part["function"].get("arguments") or ""
    same("the indexes", sorted(joined), list(range(len(joined))))
    same("the number of different ids", len({call["id"] for call in joined.values()}), len(joined))
    return [_read(call["name"], call["arguments"]) for _, call in sorted(joined.items())]


def _read(name: str, arguments: str) -> tuple[str, Any]:
    try:
        return name, json.loads(arguments)
    except ValueError:
        raise AssertionError(f"the arguments of {name} are no JSON: {arguments!r}") from None


@check("a named tool is called", needs=["forced tools"])
async def named(subject: Subject) -> None:
    """A `tool_choice` that names a tool has a call of it, with arguments of its schema."""
    document = await subject.chat(ONE, tools=[WEATHER], tool_choice=choosing("get_weather"), max_tokens=64)
    same("the calls", calls_of(document), [("get_weather", {"city": "Berlin"})])
    # OpenAI says "stop" where the tool was named, "tool_calls" where one was required.
    assert finish_of(document) in ("stop", "tool_calls"), f"the finish reason is {finish_of(document)!r}"


@check("the named tool of two is called", needs=["forced tools"])
async def named_of_two(subject: Subject) -> None:
    """A `tool_choice` names the tool to call, though the prompt asks for another."""
    document = await subject.chat(ONE, tools=[WEATHER, TIME], tool_choice=choosing("get_time"), max_tokens=64)
    [(name, arguments)] = calls_of(document)
    same("the tool", name, "get_time")
    same("the arguments' keys", set(arguments), {"zone"})


@check("a required tool call", needs=["forced tools"])
async def required(subject: Subject) -> None:
    """`tool_choice: "required"` has a call, with the finish reason "tool_calls" and an id of its own."""
    document = await subject.chat(ONE, tools=[WEATHER], tool_choice="required", max_tokens=64)
    same("the calls", calls_of(document), [("get_weather", {"city": "Berlin"})])
    same("the finish reason", finish_of(document), "tool_calls")
    [call] = document["choices"][0]["message"]["tool_calls"]
    assert call["id"] and call["type"] == "function", f"the call is {call}"


@check("a required tool call in a stream", needs=["forced tools"])
async def required_streamed(subject: Subject) -> None:
    """A stream has the calls of the whole answer, and its text beside them."""
    fields: dict[str, Any] = {"tools": [WEATHER], "tool_choice": "required", "max_tokens": 64}
    chunks, whole = await subject.chat_stream(ONE, **fields), await subject.chat(ONE, **fields)
    same("the calls", streamed_calls(chunks), calls_of(whole))
    same("the text", streamed_text(chunks), text_of(whole) or "")
    same("the finish reason", streamed_finish(chunks), "tool_calls")


@check("a cut tool call is length", needs=["forced tools"])
async def cut(subject: Subject) -> None:
    """A forced call that `max_tokens` cuts off has the finish reason "length", whole and streamed."""
    for choice in ("required", choosing("get_weather")):
        fields: dict[str, Any] = {"tools": [WEATHER], "tool_choice": choice, "max_tokens": 4}
        document = await subject.chat(ONE, **fields)
        same("the finish reason", finish_of(document), "length")
        same("the streamed finish reason", streamed_finish(await subject.chat_stream(ONE, **fields)), "length")


@check("a tool call of the model's own", needs=["auto tools"])
async def auto(subject: Subject) -> None:
    """With `tool_choice: "auto"`, which is the default, the model's own call is found: no text, "tool_calls"."""
    _is_the_model_s_choice(subject)
    for choice in ({}, {"tool_choice": "auto"}):
        document = await subject.chat(ONE, tools=[WEATHER], max_tokens=48, **choice)
        same("the calls", calls_of(document), [("get_weather", {"city": "Berlin"})])
        same("the finish reason", finish_of(document), "tool_calls")
        same("the text", text_of(document) or "", "")


@check("a tool call of the model's own in a stream", needs=["auto tools"])
async def auto_streamed(subject: Subject) -> None:
    """A stream has the model's own call, no part of it as text, and the finish reason "tool_calls"."""
    _is_the_model_s_choice(subject)
    chunks = await subject.chat_stream(ONE, tools=[WEATHER], max_tokens=48)
    same("the calls", streamed_calls(chunks), [("get_weather", {"city": "Berlin"})])
    same("the text", streamed_text(chunks), "")
    same("the finish reason", streamed_finish(chunks), "tool_calls")


@check("a cut call of the model's own is length", needs=["auto tools"])
async def auto_cut(subject: Subject) -> None:
    """A call of the model's own that is cut off has the finish reason "length", whole and streamed."""
    document = await subject.chat(ONE, tools=[WEATHER], max_tokens=10)
    same("the finish reason", finish_of(document), "length")
    chunks = await subject.chat_stream(ONE, tools=[WEATHER], max_tokens=10)
    same("the streamed finish reason", streamed_finish(chunks), "length")


@check("parallel tool calls", needs=["auto tools"])
async def parallel(subject: Subject) -> None:
    """Two calls in one answer are two, in order, with different ids."""
    _is_the_model_s_choice(subject)
    document = await subject.chat(TWO, tools=[WEATHER], max_tokens=80)
    same("the calls", calls_of(document), [("get_weather", {"city": "Berlin"}), ("get_weather", {"city": "Vienna"})])
    ids = {call["id"] for call in document["choices"][0]["message"]["tool_calls"]}
    same("the number of different ids", len(ids), 2)


@check("parallel tool calls in a stream", needs=["auto tools"])
async def parallel_streamed(subject: Subject) -> None:
    """In a stream two calls have two values of `index`, so that clients don't join them; the text is the whole's."""
    _is_the_model_s_choice(subject)
    chunks = await subject.chat_stream(TWO, tools=[WEATHER], max_tokens=80)
    same(
        "the calls", streamed_calls(chunks), [("get_weather", {"city": "Berlin"}), ("get_weather", {"city": "Vienna"})]
    )
    same("the text", streamed_text(chunks).strip(), "")
    same("the finish reason", streamed_finish(chunks), "tool_calls")


@check("parallel_tool_calls: false", needs=["auto tools"], may_refuse=["parallel_tool_calls"])
async def not_parallel(subject: Subject) -> None:
    """`parallel_tool_calls: false` has one call where the model would make two, or is refused."""
    _is_the_model_s_choice(subject)
    document = await subject.chat(TWO, tools=[WEATHER], max_tokens=80, parallel_tool_calls=False)
    same("the calls", calls_of(document), [("get_weather", {"city": "Berlin"})])


@check("no null roles beside tool calls", needs=["auto tools"])
async def deltas(subject: Subject) -> None:
    """A delta with a piece of a call has no role that is null, as OpenAI's has none."""
    chunks = await subject.chat_stream(ONE, tools=[WEATHER], max_tokens=48)
    found = [choice["delta"] for choice in choices_of(chunks) if choice["delta"].get("role", "") is None]
    assert not found, f"{len(found)} deltas have a null role, such as {found[0]}"


@check("tool_choice: none", needs=["chat/completions"])
async def none(subject: Subject) -> None:
    """With `tool_choice: "none"` every engine answers with text."""
    document = await subject.chat("What is the weather?", tools=[WEATHER], tool_choice="none", max_tokens=8)
    assert text_of(document), "there is no text"
    same("the calls", calls_of(document), [])


@check("a tool's result", needs=["auto tools"])
async def result(subject: Subject) -> None:
    """A conversation with a call and its result, whose content is null and a string, is answered."""
    call = {"name": "get_weather", "arguments": '{"city": "Berlin"}'}
    turns = [
        {"role": "user", "content": "What is the weather in Berlin?"},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "call_1", "type": "function", "function": call}]},
        {"role": "tool", "tool_call_id": "call_1", "content": "Rain."},
    ]
    assert text_of(await subject.chat(turns, tools=[WEATHER], max_tokens=8)), "the answer is empty"


@check("a tool that isn't there is a 400", needs=["forced tools"])
async def unknown(subject: Subject) -> None:
    """A `tool_choice` of a tool that isn't among `tools`, and a tool without a function, are 400s that name them."""
    turns = [{"role": "user", "content": "What is the weather?"}]
    body: dict[str, Any] = {"messages": turns, "tools": [WEATHER], "tool_choice": choosing("get_tide"), "max_tokens": 4}
    response = await subject.post(CHAT, body)
    same("the status", response.status_code, 400)
    assert response.json()["error"]["param"] in ("tool_choice", "tools"), response.text
    response = await subject.post(CHAT, {"messages": turns, "tools": [{"type": "function"}], "max_tokens": 4})
    same("the status", response.status_code, 400)
    assert response.json()["error"]["param"].startswith("tools"), response.text
