"""Every error is the SDK's own class for it, with OpenAI's error object."""

import asyncio
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from redis.asyncio import Redis

from common.fleet import Fleet
from common.keys import Keys
from tests.conftest import MakeStack
from tests.openai.test_chat import ask
from tests.support.client import Client, chat
from tests.support.processes import Stack
from tests.support.wait import until

ENDLESS = 1_000_000


@pytest.mark.parametrize("stream", [False, True])
def test_the_engines_refusal_names_the_parameter(scripted: OpenAI, stream: bool) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        scripted.chat.completions.create(**ask("bad parameter"), stream=stream)
    assert (caught.value.param, caught.value.code) == ("top_k", "invalid_request")
    assert (caught.value.type, caught.value.body["message"]) == ("invalid_request_error", "top_k is odd")  # type: ignore[index]
    with pytest.raises(openai.UnprocessableEntityError):
        scripted.chat.completions.create(**ask("not allowed"), stream=stream)
    with pytest.raises(openai.InternalServerError) as broken:
        scripted.chat.completions.create(**ask("broken"), stream=stream)
    assert broken.value.code == "engine_error"


def test_an_unknown_model(sdk: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        sdk.chat.completions.create(**{**chat("hi", 2), "model": "gpt-6"})
    assert (caught.value.code, caught.value.param) == ("model_not_found", "model")


def test_a_missing_key(make_stack: MakeStack) -> None:
    stack = make_stack(api_keys="alice:" + "0" * 64)
    with (
        OpenAI(base_url=f"{stack.api().url}/v1", api_key="wrong") as client,
        pytest.raises(openai.AuthenticationError) as caught,
    ):
        client.models.list()
    assert caught.value.code == "invalid_api_key"


async def test_a_full_queue_and_an_idempotency_key_reused(make_stack: MakeStack) -> None:
    stack = make_stack(max_queue_depth=1, sim_slots=1)
    api, _ = stack.both()
    async with AsyncOpenAI(base_url=f"{api.url}/v1", api_key="x", max_retries=0) as sdk, Client(api.url) as client:
        first = await client.submit(chat("first", ENDLESS), headers={"Idempotency-Key": "k"})
        await until(lambda: _state(client, first, "running"), "the slot is taken")
        await client.submit(chat("second", ENDLESS))
        with pytest.raises(openai.RateLimitError) as full:
            await sdk.chat.completions.create(**chat("third", 1))
        assert full.value.code == "queue_full"
        assert full.value.response.headers["retry-after"]
        with pytest.raises(openai.ConflictError) as reused:
            await sdk.chat.completions.create(**chat("other", 1), extra_headers={"Idempotency-Key": "k"})
        assert reused.value.code == "idempotency_key_reused"


async def _to_the_end(stream: Any) -> None:
    async for _ in stream:
        pass


async def _state(client: Client, job_id: str, state: str) -> bool:
    return bool((await client.job(job_id))["status"] == state)


async def test_a_timeout_of_the_clients_cancels_the_job(stack: Stack, redis: Redis, async_sdk: AsyncOpenAI) -> None:
    with pytest.raises(openai.APITimeoutError):
        await async_sdk.chat.completions.create(**chat("slow", ENDLESS), timeout=0.2)

    async def idle() -> bool:
        workers = await Fleet(redis, Keys(stack.namespace)).workers()
        return all(worker.engine_running == 0 for worker in workers)

    await until(idle, "the engine has let go of it")


async def test_a_cancelled_job_is_not_begun_again(client: Client, async_sdk: AsyncOpenAI) -> None:
    """The SDK repeats a 409, unless it is told not to."""
    body = chat("cancelled", ENDLESS)
    key = {"Idempotency-Key": "cancelled"}
    job_id = await client.submit(body, headers=key)
    patient = async_sdk.with_options(max_retries=2)
    waiting = asyncio.create_task(patient.chat.completions.create(**body, extra_headers=key))
    await until(lambda: _state(client, job_id, "running"), "it runs")
    await client.post(f"/v1/jobs/{job_id}/cancel")
    with pytest.raises(openai.ConflictError) as caught:
        await waiting
    assert caught.value.code == "job_cancelled"
    assert caught.value.response.headers["x-should-retry"] == "false"
    assert caught.value.response.request.headers["x-stainless-retry-count"] == "0"


async def test_closing_a_stream_cancels_the_job(client: Client, async_sdk: AsyncOpenAI) -> None:
    stream = await async_sdk.chat.completions.create(**chat("closed", ENDLESS), stream=True)
    job_id = (await anext(aiter(stream))).id
    await stream.close()
    await until(lambda: _state(client, job_id, "cancelled"), "the job is cancelled")


async def test_an_error_in_mid_stream_is_raised(client: Client, async_sdk: AsyncOpenAI) -> None:
    """The status line is long gone; the SDK raises what the error frame says."""
    deadline = {"tailrace": {"deadline_seconds": 2}}
    stream = await async_sdk.chat.completions.create(**chat("late", ENDLESS), stream=True, extra_body=deadline)
    first = await anext(aiter(stream))
    assert first.choices[0].delta.content
    with pytest.raises(openai.APIError) as caught:
        await _to_the_end(stream)
    assert caught.value.code == "deadline_exceeded"


UNSERVED: list[tuple[str, Any]] = [
    ("embeddings", {"model": "simulated", "input": "x"}),
    ("audio/speech", {"model": "m", "input": "x", "voice": "v"}),
    ("images/generations", {"prompt": "x"}),
    ("moderations", {"input": "x"}),
    ("rerank", {"query": "x", "documents": []}),
]


@pytest.mark.parametrize(("path", "body"), UNSERVED, ids=[path for path, _ in UNSERVED])
async def test_what_is_not_served_says_what_is(client: Client, path: str, body: Any) -> None:
    response = await client.post(f"/v1/{path}", json=body)
    assert response.status_code == 404
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    for served in ("POST /v1/chat/completions", "GET /v1/models/{model}", "POST /v1/jobs"):
        assert served in error["message"]


def test_embeddings_through_the_sdk(sdk: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="POST /v1/chat/completions"):
        sdk.embeddings.create(model="simulated", input="x")


def test_there_is_no_list_of_completions(sdk: OpenAI) -> None:
    with pytest.raises(openai.APIStatusError, match="only POST") as caught:
        sdk.chat.completions.list()
    assert caught.value.status_code == 405
