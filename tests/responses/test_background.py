"""Background responses: they live on without their client, and are streamed again from any pod."""

import asyncio
import contextlib
import signal
from typing import Any

import httpx2
import pytest
from openai import APIError, AsyncOpenAI, BadRequestError, NotFoundError
from redis.asyncio import Redis

from common.keys import Keys
from tests.conftest import MakeStack
from tests.responses.support import TERMINAL, answer_to_input, asked, check_response, check_sequence, read, sdk, text_of
from tests.support.client import Client
from tests.support.processes import Stack
from tests.support.wait import until

ENDLESS = 1_000_000


async def ended(openai: AsyncOpenAI, response_id: str) -> Any:
    async def terminal() -> Any:
        response = await openai.responses.retrieve(response_id)
        return response if response.status not in ("queued", "in_progress") else None

    return await until(terminal, "the response has ended")


async def test_polling(openai: AsyncOpenAI, other_openai: AsyncOpenAI) -> None:
    response = await openai.responses.create(**asked("poll", 40, background=True))
    assert response.status in ("queued", "in_progress")
    assert response.output == []
    done = await ended(other_openai, response.id)
    assert done.output_text == answer_to_input("poll", 40)


async def test_every_replay_says_the_same(client: Client, other: Client) -> None:
    said = check_sequence(
        await read(client, "POST", "/v1/responses", json=asked("replay", 60, background=True, stream=True))
    )
    assert [event["type"] for event in said[:3]] == ["response.created", "response.queued", "response.in_progress"]
    assert text_of(said) == answer_to_input("replay", 60)
    path = f"/v1/responses/{said[0]['response']['id']}"
    assert await read(other, "GET", path, params={"stream": True}) == said
    for after in (0, 1, 2, 7, len(said) // 2, len(said) - 2):
        assert await read(other, "GET", path, params={"stream": True, "starting_after": after}) == said[after + 1 :]
    for after in (len(said) - 1, len(said) + 5):
        assert await read(client, "GET", path, params={"stream": True, "starting_after": after}) == []


async def test_cut_and_resumed_at_pods_in_turn(client: Client, other: Client) -> None:
    body = asked("turns", 200, background=True, stream=True)
    said = await read(client, "POST", "/v1/responses", stop_after=9, json=body)
    path = f"/v1/responses/{said[0]['response']['id']}"
    turn = 0
    while said[-1]["type"] not in TERMINAL:
        turn += 1
        pod = (client, other)[turn % 2]
        said += await read(
            pod, "GET", path, stop_after=13, params={"stream": True, "starting_after": said[-1]["sequence_number"]}
        )
    check_sequence(said)
    assert text_of(said) == answer_to_input("turns", 200)


async def test_a_killed_pod_costs_nothing(make_stack: MakeStack) -> None:
    """Create on one pod, kill it in the middle, continue on the other: same numbers, nothing missing."""
    stack = make_stack(sim_itl_ms=10)
    first, second = stack.api(), stack.api()
    stack.worker()
    said: list[dict[str, Any]] = []
    async with sdk(first.url) as openai:
        stream = await openai.responses.create(**asked("kill", 200), background=True, stream=True)
        with contextlib.suppress(APIError, httpx2.HTTPError):  # the connection that breaks off
            async for event in stream:
                said.append(event.model_dump(exclude_unset=True, mode="json"))
                if len(said) == 20:
                    first.kill()
    assert said[-1]["type"] == "response.output_text.delta"
    response_id = said[0]["response"]["id"]
    async with sdk(second.url) as openai:
        rest = await openai.responses.retrieve(response_id, stream=True, starting_after=said[-1]["sequence_number"])
        said += [event.model_dump(exclude_unset=True, mode="json") async for event in rest]
        whole = [
            event.model_dump(exclude_unset=True, mode="json")
            async for event in await openai.responses.retrieve(response_id, stream=True)
        ]
    check_sequence(said)
    assert text_of(said) == answer_to_input("kill", 200)
    assert said == whole


async def test_the_helper_of_the_sdk_resumes(openai: AsyncOpenAI) -> None:
    """openai-node#1984: its snapshot needs the prefix, so it replays from the start."""
    response_id = ""
    async for event in await openai.responses.create(**asked("snapshot", 50), background=True, stream=True):
        if event.type == "response.created":
            response_id = event.response.id
        if event.sequence_number == 10:
            break
    async with openai.responses.stream(response_id=response_id, starting_after=10) as stream:
        numbers = [event.sequence_number async for event in stream]
        assert numbers[0] == 11
    done = await ended(openai, response_id)
    assert done.output_text == answer_to_input("snapshot", 50)


async def test_a_worker_that_is_killed_adds_no_event(make_stack: MakeStack) -> None:
    stack = make_stack(sim_itl_ms=10, lease_seconds=1)
    api, worker = stack.both()
    async with Client(api.url) as client:
        body = asked("takeover", 100, background=True, stream=True)
        reading = asyncio.create_task(read(client, "POST", "/v1/responses", json=body))
        await until(lambda: client.metric("tailrace_events_sent_total"), "it speaks")
        worker.kill()
        stack.worker()
        said = check_sequence(await reading)
        assert text_of(said) == answer_to_input("takeover", 100)
        path = f"/v1/responses/{said[0]['response']['id']}"
        assert await read(client, "GET", path, params={"stream": True}) == said


async def test_cancel_ends_every_stream_at_every_pod(client: Client, other: Client) -> None:
    """vllm#49721, vercel/ai#6502, open-webui#14340: exactly one terminal event for each reader, from any pod."""
    body = asked("cancel", ENDLESS, background=True, stream=True)
    first = await read(client, "POST", "/v1/responses", stop_after=8, json=body)
    path = f"/v1/responses/{first[0]['response']['id']}"
    readers = [asyncio.create_task(read(pod, "GET", path, params={"stream": True})) for pod in (client, other) * 2]
    await asyncio.sleep(0)
    cancelled = await other.post(f"{path}/cancel")
    assert cancelled.status_code == 200
    assert check_response(cancelled.json())["status"] == "cancelled"
    assert cancelled.json()["output"] == []
    for said in await asyncio.gather(*readers):
        check_sequence(said)
        assert (said[-1]["type"], said[-1]["response"]["status"]) == ("response.failed", "cancelled")
        assert said[-1]["response"] == cancelled.json()
    again = await client.post(f"{path}/cancel")
    assert (again.status_code, again.json()) == (200, cancelled.json())


async def test_cancel_while_it_waits_and_while_it_prefills(make_stack: MakeStack) -> None:
    """dynamo#13691: a cancel works in every state."""
    stack = make_stack(sim_slots=1, sim_ttft_ms=600_000)
    api, _ = stack.both()
    async with sdk(api.url) as openai, Client(api.url) as client:
        prefilling = await openai.responses.create(**asked("prefill", background=True))
        await until(lambda: client.metric("tailrace_running_jobs"), "it is claimed")
        waiting = asyncio.create_task(
            read(client, "POST", "/v1/responses", json=asked("waits", background=True, stream=True))
        )
        assert await until(lambda: client.metric("tailrace_queue_depth"), "the other waits")
        job_ids = [key.decode().rsplit(":", 1)[1] async for key in _jobs(stack)]
        [waiting_id] = [job_id for job_id in job_ids if job_id != prefilling.id]
        assert (await openai.responses.cancel(waiting_id)).status == "cancelled"
        said = check_sequence(await waiting)
        assert [event["type"] for event in said] == ["response.created", "response.queued", "response.failed"]
        assert (await openai.responses.cancel(prefilling.id)).status == "cancelled"


async def test_a_response_that_is_deleted_while_its_cancel_waits_is_a_404(make_stack: MakeStack) -> None:
    stack = make_stack(sim_ttft_ms=600_000)
    api, worker = stack.api(), stack.worker()
    async with Client(api.url) as client:
        response = (await client.post("/v1/responses", json=asked(background=True))).json()
        path = f"/v1/responses/{response['id']}"
        await until(lambda: client.metric("tailrace_running_jobs"), "it is claimed")
        worker.signal(signal.SIGSTOP)
        cancelling = asyncio.create_task(client.post(f"{path}/cancel"))
        await until(lambda: "cancel (cancelled_by_client), it was running" in api.log, "the cancel waits")
        assert (await client.delete(path)).json()["deleted"] is True
        worker.signal(signal.SIGCONT)
        cancelled = await cancelling
        assert (cancelled.status_code, cancelled.json()["error"]["param"]) == (404, "response_id")


async def _jobs(stack: Stack) -> Any:
    async with Redis.from_url(stack.redis_url) as redis:
        async for key in redis.scan_iter(f"{stack.namespace}:job:*"):
            yield key


async def test_each_state_has_its_own_refusal_to_cancel(openai: AsyncOpenAI) -> None:
    """vllm#57999: the right message for each state."""

    async def refusal(response_id: str) -> str:
        with pytest.raises(BadRequestError) as refused:
            await openai.responses.cancel(response_id)
        return str(refused.value.body["message"])  # type: ignore[index]

    synchronous = await openai.responses.create(**asked())
    assert await refusal(synchronous.id) == "Cannot cancel a synchronous response."
    cut = await openai.responses.create(**asked(background=True))
    await ended(openai, cut.id)
    assert await refusal(cut.id) == "Cannot cancel an incomplete response."
    late = await openai.responses.create(
        **asked("late", ENDLESS, background=True), extra_body={"tailrace": {"deadline_seconds": 0.2}}
    )
    failed = await ended(openai, late.id)
    assert (failed.status, failed.error.code) == ("failed", "server_error")
    assert await refusal(late.id) == "Cannot cancel a failed response."
    with pytest.raises(NotFoundError):
        await openai.responses.cancel("resp_none")


async def test_what_cannot_be_streamed_again(client: Client) -> None:
    for body, name in (
        (asked(stream=False), "background"),
        (asked(background=True), "stream"),
    ):
        response = (await client.post("/v1/responses", json=body)).json()
        refused = await client.get(f"/v1/responses/{response['id']}", params={"stream": True})
        assert refused.status_code == 400
        error = refused.json()["error"]
        assert error["message"] == f"This response cannot be streamed because it was not created with {name}=true."
        assert error["param"] == "stream"


async def test_after_the_window_the_result_still_comes(client: Client, redis: Redis, stack: Stack) -> None:
    """openai-python#2828: the window is a setting, stated in the response."""
    async with client.stream(
        "POST", "/v1/responses", json=asked("window", 20, background=True, stream=True)
    ) as response:
        assert response.headers["x-tailrace-resumable-seconds"] == "600"
        response_id = response.headers["x-job-id"]
        await response.aread()
    whole = (await client.get(f"/v1/responses/{response_id}")).json()
    await redis.delete(Keys(stack.namespace).stream(response_id))
    refused = await client.get(f"/v1/responses/{response_id}", params={"stream": True, "starting_after": 3})
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "stream_expired")
    assert refused.json()["error"]["param"] == "stream"
    assert (await client.get(f"/v1/responses/{response_id}")).json() == whole
    assert whole["output"][0]["content"][0]["text"] == answer_to_input("window", 20)


@pytest.mark.parametrize("background", [True, False])
async def test_after_the_window_a_repeat_cannot_be_streamed_either(
    client: Client, redis: Redis, stack: Stack, background: bool
) -> None:
    """By its status, not by an error in a stream that has begun."""
    body, headers = asked(stream=True, background=background), {"Idempotency-Key": f"after the window {background}"}
    said = await read(client, "POST", "/v1/responses", json=body, headers=headers)
    await redis.delete(Keys(stack.namespace).stream(said[0]["response"]["id"]))
    refused = await client.post("/v1/responses", json=body, headers=headers)
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "stream_expired")
    whole = await client.post("/v1/responses", json={**body, "stream": False}, headers=headers)
    assert whole.json()["output"] == said[-1]["response"]["output"]


async def test_a_log_with_a_hole_is_an_error(client: Client, redis: Redis, stack: Stack) -> None:
    """deer-flow#4413: what is missing is never skipped, and the error takes no number."""
    said = await read(client, "POST", "/v1/responses", json=asked("hole", 50, background=True, stream=True))
    response_id = said[0]["response"]["id"]
    await redis.xtrim(Keys(stack.namespace).stream(response_id), maxlen=10, approximate=False)
    params = {"stream": True, "starting_after": 8}
    [error] = await read(client, "GET", f"/v1/responses/{response_id}", params=params)
    assert (error["type"], error["code"], error["sequence_number"]) == ("error", "stream_trimmed", 8)


async def test_delete(openai: AsyncOpenAI, client: Client) -> None:
    done = await openai.responses.create(**asked())
    answer = await client.delete(f"/v1/responses/{done.id}")
    assert answer.json() == {"id": done.id, "object": "response", "deleted": True}
    running = await openai.responses.create(**asked("deleted", ENDLESS, background=True))
    await openai.responses.delete(running.id)
    for response_id in (done.id, running.id):
        with pytest.raises(NotFoundError):
            await openai.responses.retrieve(response_id)


async def test_a_reader_that_leaves_changes_nothing(openai: AsyncOpenAI) -> None:
    """litellm#36275: a background response never notices."""
    response_id = ""
    async for event in await openai.responses.create(**asked("leave", 100), background=True, stream=True):
        if event.type == "response.created":
            response_id = event.response.id
            break
    assert (await ended(openai, response_id)).output_text == answer_to_input("leave", 100)
