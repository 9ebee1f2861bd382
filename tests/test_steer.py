"""Changing parameters in mid-answer: one log, one reader, nothing lost."""

import asyncio
import json

import pytest
from websockets.asyncio.client import connect

from tests.conftest import MakeStack
from tests.support.client import Client, Heard, answer_to, chat
from tests.support.processes import Stack
from tests.support.wait import until

ENDLESS = 1_000_000


async def test_a_running_answer_continues_under_new_parameters(client: Client, other: Client, stack: Stack) -> None:
    """The simulated engine's tokens show any loss; max_tokens shows that the change has come."""
    body = chat("steer", ENDLESS)
    job_id = await client.submit(body)
    heard = Heard()
    reading = asyncio.create_task(client.read(job_id, heard))
    for change, limit in enumerate((900_000, 800_000), 1):
        seen = len(heard.ids)
        await until(lambda: len(heard.ids) > seen + 5, "it flows")  # noqa: B023
        response = await other.patch(f"/v1/jobs/{job_id}", json={"temperature": 0.2, "max_tokens": limit})
        assert response.status_code == 200, response.text
        await until(lambda: stack.workers[0].log.count(f"job {job_id}: continues") == change, "it came")  # noqa: B023
    seen = len(heard.ids)
    await until(lambda: len(heard.ids) > seen + 5, "it flows on")
    await other.patch(f"/v1/jobs/{job_id}", json={"max_tokens": 1})
    await reading
    assert heard.end
    assert heard.end["status"] == "incomplete"
    tokens = heard.end["usage"]["completion_tokens"]
    assert heard.text == answer_to(body, heard.text.count(" "))
    assert tokens >= heard.text.count(" ")
    assert len(heard.started) == 1, "the same attempt, the same stream"


async def test_a_waiting_job_starts_with_the_new_parameters(make_stack: MakeStack) -> None:
    stack = make_stack(sim_slots=1)
    api, _ = stack.both()
    async with Client(api.url) as client:
        blocker = await client.submit(chat("blocks", ENDLESS))
        await client.read(blocker, stop_after=1)
        body = chat("waits", ENDLESS)
        job_id = await client.submit(body)
        assert (await client.patch(f"/v1/jobs/{job_id}", json={"max_tokens": 7})).status_code == 200
        await client.post(f"/v1/jobs/{blocker}/cancel")
        assert (await client.read(job_id)).text == answer_to(body, 7)


async def test_the_new_parameters_survive_a_takeover(make_stack: MakeStack) -> None:
    stack = make_stack(sim_itl_ms=10, lease_seconds=1)
    api, first = stack.both()
    async with Client(api.url) as client:
        body = chat("steer and kill", ENDLESS)
        job_id = await client.submit(body)
        heard = Heard()
        reading = asyncio.create_task(client.read(job_id, heard))
        await until(lambda: len(heard.ids) > 5, "it flows")
        await client.patch(f"/v1/jobs/{job_id}", json={"max_tokens": 300})
        await until(lambda: "continues under new parameters" in first.log, "the change has come")
        first.kill()
        stack.worker()
        await reading
        assert heard.text == answer_to(body, 300)


async def test_over_a_websocket(stack: Stack, client: Client) -> None:
    job_id = await client.submit(chat("steer ws", ENDLESS))
    async with connect(stack.apis[1].url.replace("http", "ws") + "/v1/ws") as ws:
        await ws.send(json.dumps({"type": "update", "id": job_id, "temperature": 0.2, "max_tokens": 1, "ref": 7}))
        message = json.loads(await ws.recv())
        assert (message["type"], message["status"], message["ref"]) == ("status", "updated", 7)
        await ws.send(json.dumps({"type": "update", "id": job_id, "model": "other"}))
        assert json.loads(await ws.recv())["error"]["param"] == "model"
    assert (await client.read(job_id)).end


async def test_what_cannot_be_steered(client: Client) -> None:
    several = await client.submit(chat("several", ENDLESS, n=2))
    await client.read(several, stop_after=1)
    response = await client.patch(f"/v1/jobs/{several}", json={"temperature": 0.2})
    assert response.status_code == 409
    assert response.json()["error"]["code"] == "not_continuable"
    await client.post(f"/v1/jobs/{several}/cancel")
    done = await client.submit(chat("done", 2))
    await client.read(done)
    response = await client.patch(f"/v1/jobs/{done}", json={"temperature": 0.2})
    assert response.json()["error"]["code"] == "job_already_ended"
    assert (await client.patch("/v1/jobs/job-none", json={"temperature": 0.2})).status_code == 404


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({}, "temperature"),
        ({"temperature": -1}, "temperature"),
        ({"temperature": "low"}, "temperature"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"seed": 1}, "seed"),
    ],
)
async def test_bad_changes(client: Client, changes: dict[str, object], param: str) -> None:
    job_id = await client.submit(chat("bad", 3))
    response = await client.patch(f"/v1/jobs/{job_id}", json=changes)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param
