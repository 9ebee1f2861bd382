"""Creating responses whose client waits for them, and reading them again."""

import asyncio
from typing import Any

import httpx
import pytest
from openai import AsyncOpenAI, NotFoundError

from tests.conftest import MakeStack
from tests.responses.support import answer_to_input, asked, check_response, check_sequence, read, sdk, text_of
from tests.support.client import Client, chat
from tests.support.wait import until


async def test_a_whole_response(openai: AsyncOpenAI, client: Client) -> None:
    response = await openai.responses.create(**asked("whole", 12, metadata={"a": "b"}))
    assert response.output_text == answer_to_input("whole", 12)
    assert response.status == "incomplete"
    assert response.incomplete_details
    assert response.incomplete_details.reason == "max_output_tokens"
    assert response.usage
    assert response.usage.output_tokens == 12
    assert response.metadata == {"a": "b"}
    again = await client.get(f"/v1/responses/{response.id}")
    assert check_response(again.json()) == response.model_dump(exclude_unset=True, mode="json")


async def test_a_streamed_response(client: Client, other: Client) -> None:
    said = check_sequence(await read(client, "POST", "/v1/responses", json=asked("stream", 30, stream=True)))
    assert said[0]["type"] == "response.created"
    assert text_of(said) == answer_to_input("stream", 30)
    last = said[-1]["response"]
    assert last["output"][0]["content"][0]["text"] == text_of(said)
    assert (await other.get(f"/v1/responses/{last['id']}")).json() == last, "the record says what the stream said"


async def test_the_stream_helper_of_the_sdk(openai: AsyncOpenAI) -> None:
    async with openai.responses.stream(model="simulated", input="helper", max_output_tokens=9) as stream:
        text = "".join([event.delta async for event in stream if event.type == "response.output_text.delta"])
    assert text == answer_to_input("helper", 9)


async def test_the_job_behind_a_response(client: Client) -> None:
    """A response is a job: followed in any view, and from any event on."""
    response = (await client.post("/v1/responses", json=asked("job", 6))).json()
    path = f"/v1/jobs/{response['id']}"
    record = await client.job(response["id"])
    assert record["output"] == response
    async with client.stream("GET", f"{path}/events", params={"view": "responses"}) as stream:
        frames = (await stream.aread()).decode().strip().split("\n\n")
    ids = [frame.split("\n")[0].removeprefix("id: ") for frame in frames]
    of_the_end = [frame for frame in frames if frame.startswith(f"id: {ids[-1]}")]
    for n, id in enumerate(ids):
        resumed = await client.get(f"{path}/events", params={"view": "responses", "after": id})
        # The end is told again to a reader that was at the end.
        assert resumed.text.strip().split("\n\n") == (frames[n + 1 :] or of_the_end), id
    chunks = await client.get(f"{path}/events", params={"view": "chat"})
    assert chunks.text.endswith("data: [DONE]\n\n")


async def test_the_view_is_for_responses_only(client: Client) -> None:
    job_id = (await client.post("/v1/chat/completions", json=chat())).json()["id"]
    refused = await client.get(f"/v1/jobs/{job_id}/events", params={"view": "responses"})
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "view"
    assert (await client.get(f"/v1/responses/{job_id}")).status_code == 404


async def test_a_response_that_is_not_stored(openai: AsyncOpenAI) -> None:
    response = await openai.responses.create(**asked(store=False))
    with pytest.raises(NotFoundError):
        await openai.responses.retrieve(response.id)
    with pytest.raises(NotFoundError):
        await openai.responses.delete(response.id)


async def test_responses_of_others_do_not_exist(make_stack: MakeStack) -> None:
    from api.auth import digest_of

    stack = make_stack(api_keys=f"me:{digest_of('mine')},you:{digest_of('yours')}")
    api, _ = stack.both()
    async with sdk(api.url) as mine, sdk(api.url) as yours:
        mine.api_key, yours.api_key = "mine", "yours"
        response = await mine.responses.create(**asked(background=True))
        assert await mine.responses.retrieve(response.id)
        for call in (yours.responses.retrieve, yours.responses.cancel, yours.responses.delete):
            with pytest.raises(NotFoundError):
                await call(response.id)


async def test_a_client_that_leaves_cancels(make_stack: MakeStack) -> None:
    """vllm#54947, production-stack#634: streaming or not."""
    stack = make_stack()
    api, _ = stack.both()

    async def running() -> float:
        return await client.metric("tailrace_running_jobs") + await client.metric("tailrace_queue_depth")

    async def idle() -> bool:
        return await running() == 0

    async with Client(api.url) as client:
        await read(client, "POST", "/v1/responses", stop_after=5, json=asked("gone", 1_000_000, stream=True))
        await until(idle, "the streamed response was cancelled")
        waiting = asyncio.create_task(client.post("/v1/responses", json=asked("gone", 1_000_000)))
        await until(running, "the whole response has begun")
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await until(idle, "the whole response was cancelled")


REFUSED: list[tuple[str, dict[str, Any]]] = [
    ("model", {"model": 3}),
    ("input", {"input": None}),
    ("input", {"input": []}),
    ("input.0.type", {"input": [{"type": "item_reference", "id": "x"}]}),
    ("input.0.role", {"input": [{"role": "robot", "content": "x"}]}),
    (
        "input.0.content.0.file_id",
        {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "u", "file_id": "f"}]}]},
    ),
    ("input.0.content.0", {"input": [{"role": "user", "content": [{"type": "input_file", "file_id": "f"}]}]}),
    ("input.0.encrypted_content", {"input": [{"type": "reasoning", "summary": [], "encrypted_content": "x"}]}),
    ("input.1.call_id", {"input": [{"role": "user", "content": "x"}, {"type": "function_call_output", "output": "y"}]}),
    ("max_output_tokens", {"max_output_tokens": 0}),
    ("temperature", {"temperature": 3}),
    ("metadata", {"metadata": {str(i): "x" for i in range(17)}}),
    ("tools.0.type", {"tools": [{"type": "web_search"}]}),
    ("tool_choice.type", {"tool_choice": {"type": "allowed_tools"}}),
    ("text.format", {"text": {"format": {"type": "json_schema"}}}),
    ("text.verbosity", {"text": {"verbosity": "low"}}),
    ("reasoning.summary", {"reasoning": {"summary": "auto"}}),
    ("truncation", {"truncation": "auto"}),
    ("include", {"include": ["reasoning.encrypted_content"]}),
    ("conversation", {"conversation": "conv_1"}),
    ("prompt", {"prompt": {"id": "p"}}),
    ("service_tier", {"service_tier": "gold"}),
    ("background", {"background": True, "store": False}),
    ("stream_options.include_obfuscation", {"stream": True, "stream_options": {"include_obfuscation": True}}),
    ("tailrace.priority", {"tailrace": {"priority": "high"}}),
    ("tailrace.on_disconnect", {"background": True, "tailrace": {"on_disconnect": "cancel"}}),
    ("seed", {"seed": "x"}),
    ("previous_response_id", {"previous_response_id": "resp_none"}),
    ("unheard_of", {"unheard_of": 1}),
]


@pytest.mark.parametrize(("param", "body"), REFUSED, ids=[f"{param}-{i}" for i, (param, _) in enumerate(REFUSED)])
async def test_what_is_not_supported_is_refused_by_name(client: Client, param: str, body: dict[str, Any]) -> None:
    response = await client.post("/v1/responses", json={**asked(), **body})
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert (error["type"], error["param"]) == ("invalid_request_error", param), error


async def test_an_unknown_model_is_a_404(client: Client) -> None:
    response = await client.post("/v1/responses", json={**asked(), "model": "none"})
    assert (response.status_code, response.json()["error"]["code"]) == (404, "model_not_found")


async def test_an_idempotent_repeat_finds_the_first_response(client: Client) -> None:
    headers = {"Idempotency-Key": "responses-repeat"}
    first, again = [(await client.post("/v1/responses", json=asked("same"), headers=headers)).json() for _ in range(2)]
    assert again == first
    events = await read(client, "POST", "/v1/responses", json=asked("same", stream=True), headers=headers)
    assert events[-1]["response"] == first, "delivered in another way, as at the other endpoints"
    other = await client.post("/v1/responses", json=asked("same", metadata={"a": "b"}), headers=headers)
    assert other.status_code == 409


async def test_what_is_not_known_as_a_query_is_refused(client: Client) -> None:
    response = (await client.post("/v1/responses", json=asked())).json()
    path = f"/v1/responses/{response['id']}"
    for params, param in (({"include[]": "x"}, "include[]"), ({"starting_after": 3}, "starting_after")):
        refused: httpx.Response = await client.get(path, params=params)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)
