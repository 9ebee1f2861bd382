"""Conversations, tools, reasoning and formats: what reaches the engine, and what comes back as items."""

import json
from typing import Any

import pytest
from openai import AsyncOpenAI, BadRequestError
from openai.types.responses import ResponseItem
from pydantic import BaseModel, TypeAdapter

from tests.responses.support import asked, check_response, check_sequence, read
from tests.support.client import Client
from tests.support.processes import Stack
from tests.support.upstream import ScriptedUpstream
from tests.support.wait import until

MODEL = "scripted"
TOOL: Any = {
    "type": "function",
    "name": "weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    "strict": True,
}


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


async def test_parameters_reach_the_engine_as_a_chats(scripted_openai: AsyncOpenAI, upstream: ScriptedUpstream) -> None:
    schema: Any = {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": True}
    await scripted_openai.responses.create(
        model=MODEL,
        input="hello",
        instructions="Be brief.",
        max_output_tokens=9,
        temperature=0.5,
        top_p=0.9,
        tools=[TOOL],
        tool_choice={"type": "function", "name": "weather"},
        parallel_tool_calls=False,
        text={"format": schema},
        reasoning={"effort": "low"},
        extra_body={"seed": 3, "top_k": 4},
    )
    said = {name: upstream.asked[-1][name] for name in upstream.asked[-1] if name not in ("stream", "stream_options")}
    assert said == {
        "model": MODEL,
        "messages": [{"role": "system", "content": "Be brief."}, user("hello")],
        "max_completion_tokens": 9,
        "temperature": 0.5,
        "top_p": 0.9,
        "tools": [{"type": "function", "function": {name: TOOL[name] for name in ("name", "parameters", "strict")}}],
        "tool_choice": {"type": "function", "function": {"name": "weather"}},
        "parallel_tool_calls": False,
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "n", "schema": {"type": "object"}, "strict": True},
        },
        "reasoning_effort": "low",
        "seed": 3,
        "top_k": 4,
    }


async def test_what_is_not_given_is_not_made_up(scripted_openai: AsyncOpenAI, upstream: ScriptedUpstream) -> None:
    await scripted_openai.responses.create(model=MODEL, input="hello")
    assert upstream.asked[-1].keys() - {"stream", "stream_options"} == {"model", "messages"}


async def test_a_conversation_with_tools(scripted_openai: AsyncOpenAI, upstream: ScriptedUpstream) -> None:
    first = await scripted_openai.responses.create(
        model=MODEL, input="two tools", instructions="Use tools.", tools=[TOOL]
    )
    assert first.status == "completed"
    calls = [item for item in first.output if item.type == "function_call"]
    assert [(call.call_id, json.loads(call.arguments)) for call in calls] == [
        ("call-a", {"city": "Paris"}),
        ("call-b", {"city": "Rome"}),
    ]
    outputs = [{"type": "function_call_output", "call_id": call.call_id, "output": "sunny"} for call in calls]
    going_on: Any = [*outputs, user("hello")]
    second = await scripted_openai.responses.create(model=MODEL, previous_response_id=first.id, input=going_on)
    assert second.previous_response_id == first.id
    called = [
        {"id": c.call_id, "type": "function", "function": {"name": "weather", "arguments": c.arguments}} for c in calls
    ]
    before = [
        user("two tools"),
        {"role": "assistant", "content": "Let me see. ", "tool_calls": called},
        {"role": "tool", "tool_call_id": "call-a", "content": "sunny"},
        {"role": "tool", "tool_call_id": "call-b", "content": "sunny"},
        user("hello"),
    ]
    assert upstream.asked[-1]["messages"] == before, "without the instructions of the first, as OpenAI does"
    await scripted_openai.responses.delete(first.id)
    await scripted_openai.responses.create(model=MODEL, previous_response_id=second.id, input="hello")
    answer = {"role": "assistant", "content": "Hello there"}
    assert upstream.asked[-1]["messages"] == [*before, answer, user("hello")], "the first may be gone by now"


async def test_output_items_are_input_items(scripted_openai: AsyncOpenAI, upstream: ScriptedUpstream) -> None:
    """The other way to go on: the client sends everything back."""
    first = await scripted_openai.responses.create(model=MODEL, input="reasoning", store=False)
    history: Any = [user("reasoning"), *first.output, user("hello")]
    await scripted_openai.responses.create(model=MODEL, input=history, store=False)
    turn = {"role": "assistant", "reasoning": "One plus one is two.", "content": "2"}
    assert upstream.asked[-1]["messages"] == [user("reasoning"), turn, user("hello")]


async def test_reasoning_is_an_item(scripted_stack: Stack) -> None:
    async with Client(scripted_stack.apis[0].url) as client:
        body = {"model": MODEL, "input": "reasoning", "stream": True}
        said = check_sequence(await read(client, "POST", "/v1/responses", json=body))
    reasoning, message = said[-1]["response"]["output"]
    assert reasoning["content"] == [{"type": "reasoning_text", "text": "One plus one is two."}]
    assert message["content"][0]["text"] == "2"


async def test_a_refusal(scripted_stack: Stack) -> None:
    async with Client(scripted_stack.apis[0].url) as client:
        body = {"model": MODEL, "input": "refusal", "stream": True}
        said = check_sequence(await read(client, "POST", "/v1/responses", json=body))
        assert said[-1]["response"]["output"][0]["content"] == [{"type": "refusal", "refusal": "I will not."}]
        again = await client.get(f"/v1/responses/{said[-1]['response']['id']}")
        assert again.json() == said[-1]["response"]


async def test_structured_outputs_by_the_helper_of_the_sdk(
    scripted_openai: AsyncOpenAI, upstream: ScriptedUpstream
) -> None:
    class City(BaseModel):
        city: str
        large: bool

    parsed = await scripted_openai.responses.parse(model=MODEL, input="json", text_format=City)
    assert parsed.output_parsed == City(city="Rome", large=True)
    asked_for = upstream.asked[-1]["response_format"]
    assert (asked_for["type"], asked_for["json_schema"]["name"], asked_for["json_schema"]["strict"]) == (
        "json_schema",
        "City",
        True,
    )
    await scripted_openai.responses.create(model=MODEL, input="json", text={"format": {"type": "json_object"}})
    assert upstream.asked[-1]["response_format"] == {"type": "json_object"}


async def test_images_go_to_the_engine(client: Client) -> None:
    image = {"type": "input_image", "image_url": "data:image/png;base64,xyz"}
    parts = [{"type": "input_text", "text": "What is it?"}, image]
    response = (
        await client.post("/v1/responses", json={**asked(), "input": [{"role": "user", "content": parts}]})
    ).json()
    items = (await client.get(f"/v1/responses/{response['id']}/input_items")).json()["data"]
    assert items[0]["content"] == [parts[0], {**image, "detail": "auto"}]


@pytest.mark.parametrize("stream", [False, True])
async def test_the_engines_refusal_is_a_real_400(scripted_stack: Stack, stream: bool) -> None:
    async with Client(scripted_stack.apis[0].url) as client:
        body = {"model": MODEL, "input": "bad parameter", "stream": stream}
        refused = await client.post("/v1/responses", json=body)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "top_k")
        broken = await client.post("/v1/responses", json={**body, "input": "broken"})
        assert (broken.status_code, broken.json()["error"]["type"]) == (500, "server_error")
        queued = (await client.post("/v1/responses", json={**body, "stream": False, "background": True})).json()

        async def failed() -> Any:
            response = (await client.get(f"/v1/responses/{queued['id']}")).json()
            return response if response["status"] == "failed" else None

        response = check_response(await until(failed, "the background response has failed"))
        assert response["error"] == {"code": "invalid_prompt", "message": "top_k is odd"}


async def test_what_cannot_be_continued(openai: AsyncOpenAI, client: Client) -> None:
    running = await openai.responses.create(**asked("endless", 1_000_000, background=True))
    refused = await client.post("/v1/responses", json=asked(previous_response_id=running.id))
    await openai.responses.cancel(running.id)
    cancelled = await client.post("/v1/responses", json=asked(previous_response_id=running.id))
    hidden = await openai.responses.create(**asked(store=False))
    missing = await client.post("/v1/responses", json=asked(previous_response_id=hidden.id))
    for response, code in (
        (refused, "previous_response_not_completed"),
        (cancelled, "previous_response_not_completed"),
        (missing, "previous_response_not_found"),
    ):
        error = response.json()["error"]
        assert (response.status_code, error["code"], error["param"]) == (400, code, "previous_response_id")


async def test_a_conversation_has_a_limit(client: Client) -> None:
    """Each response keeps all of the conversation: one without a limit would fill Redis."""
    large = "x" * 5_000_000
    first = (await client.post("/v1/responses", json=asked(large, 1))).json()
    second = await client.post("/v1/responses", json=asked(large, 1, previous_response_id=first["id"]))
    assert (second.status_code, second.json()["error"]["code"]) == (400, "conversation_too_large")


async def test_input_items(openai: AsyncOpenAI) -> None:
    sent: Any = [
        user("one"),
        {"type": "message", "role": "assistant", "content": "two"},
        {"type": "reasoning", "id": "rs_mine", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "three"},
        {"role": "developer", "content": [{"type": "input_text", "text": "four"}]},
    ]
    response = await openai.responses.create(**{**asked(), "input": sent})
    page = await openai.responses.input_items.list(response.id, order="asc")
    items = [item.to_dict(mode="json") for item in page.data]
    for item in items:
        TypeAdapter(ResponseItem).validate_python(item, strict=True)
    assert [item["type"] for item in items] == [item.get("type", "message") for item in sent]
    assert items[0]["content"] == [{"type": "input_text", "text": "one"}]
    assert items[1]["content"] == [{"type": "output_text", "text": "two", "annotations": [], "logprobs": []}]
    assert items[2]["id"] == "rs_mine"
    ids = [item["id"] for item in items]
    assert len(set(ids)) == len(ids)
    backwards = [item.id async for item in openai.responses.input_items.list(response.id, limit=2)]
    assert backwards == ids[::-1], "newest first, two at a time"
    with pytest.raises(BadRequestError):
        await openai.responses.input_items.list(response.id, limit=0)


async def test_a_response_is_followed_over_a_websocket_too(client: Client, stack: Stack) -> None:
    from websockets.asyncio.client import connect

    response = (await client.post("/v1/responses", json=asked("socket", 20, background=True))).json()
    async with connect(stack.apis[1].url.replace("http", "ws") + "/v1/ws") as socket:
        await socket.send(json.dumps({"type": "attach", "id": response["id"]}))
        text = ""
        async for data in socket:
            message = json.loads(data)
            text += message.get("content", "") if message["type"] == "token" else ""
            if message["type"] == "done":
                break
    whole = (await client.get(f"/v1/responses/{response['id']}")).json()
    assert whole["output"][0]["content"][0]["text"] == text
