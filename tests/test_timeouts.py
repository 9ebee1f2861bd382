"""Each timeout ends the job with its own code, frees the engine, and is set by settings or by request."""

from typing import Any

import pytest
from redis.asyncio import Redis

from common.fleet import Fleet
from common.keys import Keys
from tests.conftest import MakeStack
from tests.support.client import Client, answer_to, chat
from tests.support.wait import until

ENDLESS = 1_000_000
CASES = [
    ("first_token_timeout", {"sim_ttft_ms": 600_000}, {"ttft_timeout_seconds": 0.3}),
    ("first_token_timeout", {"sim_ttft_ms": 600_000, "ttft_timeout_seconds": 0.3}, {}),
    ("stall_timeout", {"sim_itl_ms": 600_000}, {"stall_timeout_seconds": 0.3}),
    ("stall_timeout", {"sim_itl_ms": 600_000, "stall_timeout_seconds": 0.3}, {}),
    ("deadline_exceeded", {}, {"deadline_seconds": 0.3}),
    ("deadline_exceeded", {"total_timeout_seconds": 0.3}, {}),
    ("queue_timeout", {"sim_slots": 1}, {"queue_timeout_seconds": 0.3}),
    ("queue_timeout", {"sim_slots": 1, "queue_timeout_seconds": 0.3}, {}),
]


@pytest.mark.parametrize(("code", "settings", "options"), CASES)
async def test_a_timeout(
    make_stack: MakeStack, redis: Redis, code: str, settings: dict[str, Any], options: dict[str, Any]
) -> None:
    stack = make_stack(**settings)
    api, _ = stack.both()
    async with Client(api.url) as client:
        blocker = None
        if code == "queue_timeout":
            patient = {"deadline_seconds": 600, "queue_timeout_seconds": 600}
            blocker = await client.submit(chat("blocks the only slot", ENDLESS, tailrace=patient))
            await client.read(blocker, stop_after=1)
        body = chat("slow", ENDLESS, tailrace=options)
        job_id = await client.submit(body)
        heard = await client.read(job_id)
        assert heard.end
        assert heard.end["status"] == "failed"
        assert heard.end["error"]["code"] == code
        record = await client.job(job_id)
        assert record["status"] == "failed", "who has read the end finds the record ended"
        assert record["error"]["type"] == "timeout_error"
        if code != "stall_timeout":
            # Answered before anything was streamed: a real HTTP status. With a token out, it is an error frame.
            response = await client.post("/v1/chat/completions", json=body)
            assert response.status_code == 504
            assert response.json()["error"]["code"] == code
        if blocker:
            await client.post(f"/v1/jobs/{blocker}/cancel")

        async def idle() -> bool:
            return all(worker.engine_running == 0 for worker in await Fleet(redis, Keys(stack.namespace)).workers())

        await until(idle, "the engine was told to stop")


async def test_there_is_no_hidden_limit(make_stack: MakeStack) -> None:
    """arq's job_timeout and the first-token timeout do not cut an answer that keeps coming."""
    stack = make_stack(sim_itl_ms=50, ttft_timeout_seconds=2, stall_timeout_seconds=2, lease_seconds=2)
    api, _ = stack.both()
    async with Client(api.url) as client:
        body = chat("long", 80)
        heard = await client.read(await client.submit(body))
        assert heard.text == answer_to(body)
        assert len(heard.started) == 1


async def test_no_worker_for_a_known_model(make_stack: MakeStack) -> None:
    """Who hangs on the line is told at once; who can wait, waits; and the wait is bounded without any worker."""
    stack = make_stack()
    api, worker = stack.both()
    worker.stop()
    async with Client(api.url) as client:

        async def gone() -> bool:
            return not (await client.get("/v1/models")).json()["data"]

        await until(gone, "the worker is no longer listed")
        response = await client.post("/v1/chat/completions", json=chat("now", 1))
        assert response.status_code == 503
        assert response.json()["error"]["code"] == "no_worker"
        assert response.headers["retry-after"]
        job_id = await client.submit(chat("later", 1, tailrace={"queue_timeout_seconds": 0.3}))
        heard = await client.read(job_id)
        assert heard.end
        assert heard.end["error"]["code"] == "queue_timeout"
