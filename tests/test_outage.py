"""Redis goes away and comes back while everything runs."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.conftest import MakeStack
from tests.support.client import Client, Heard, answer_to, chat
from tests.support.processes import RedisServer
from tests.support.wait import until


@pytest.fixture
def own_redis(tmp_path: Path) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path / "own-redis")
    yield server
    server.stop()


@pytest.mark.slow
async def test_streams_go_on_after_redis_comes_back(make_stack: MakeStack, own_redis: RedisServer) -> None:
    stack = make_stack(own_redis.url, sim_itl_ms=20, sim_slots=32)
    api, worker = stack.api(), stack.worker()
    async with Client(api.url) as client:
        bodies = [chat(f"outage {i}", 300) for i in range(20)]
        ids = [await client.submit(body) for body in bodies]
        heard = [Heard() for _ in ids]
        reading = [asyncio.create_task(client.read(id, one)) for id, one in zip(ids, heard, strict=True)]
        chatting = asyncio.create_task(client.post("/v1/chat/completions", json=chat("interactive", 300)))
        await until(lambda: all(len(one.ids) > 20 for one in heard), "all streams flow")

        own_redis.stop()
        await until(lambda: _status(client, "/health/ready", 503), "the pod says it is not ready")
        for path, body in (("/v1/chat/completions", chat()), ("/v1/jobs", chat())):
            response = await client.post(path, json=body)
            assert response.status_code == 503, response.text
            assert response.json()["error"]["code"] == "redis_unavailable"
            assert response.headers["retry-after"]
        assert (await client.get(f"/v1/jobs/{ids[0]}")).status_code == 503
        assert (await client.get("/health/live")).status_code == 200
        await until(lambda: "writer: Redis is away" in worker.log, "the worker noticed")
        own_redis.start()

        await asyncio.gather(*reading)
        for body, one in zip(bodies, heard, strict=True):
            assert one.text == answer_to(body)
            assert one.ends == 1
        assert (await chatting).json()["choices"][0]["message"]["content"] == answer_to(chat("interactive", 300))
        assert api.alive
        assert worker.alive
        assert (await client.read(await client.submit(chat("after", 5)))).text == answer_to(chat("after", 5))
        for job_id in ids:
            assert (await client.job(job_id))["status"] == "incomplete"


@pytest.mark.slow
async def test_an_outage_does_not_look_like_readers_that_left(make_stack: MakeStack, own_redis: RedisServer) -> None:
    """Presence lapses while Redis is away; connected readers' jobs, running and waiting, go on all the same."""
    stack = make_stack(own_redis.url, sim_itl_ms=20, sim_slots=2, presence_ttl_seconds=1)
    api, worker = stack.api(), stack.worker()
    async with Client(api.url) as client:
        bodies = [chat(f"reader {i}", 150) for i in range(4)]
        posting = [asyncio.create_task(client.post("/v1/chat/completions", json=body)) for body in bodies]
        await until(lambda: api.log.count(": accepted") == 4, "two run and two wait")
        own_redis.stop()
        loop = asyncio.get_running_loop()
        over = loop.time() + 3
        await until(lambda: loop.time() > over, "presence has lapsed")
        own_redis.start()
        for body, response in zip(bodies, await asyncio.gather(*posting), strict=True):
            assert response.status_code == 200, response.text
            assert response.json()["choices"][0]["message"]["content"] == answer_to(body)
        assert "abandoned" not in worker.log


@pytest.mark.slow
async def test_an_outage_longer_than_the_lease(make_stack: MakeStack, own_redis: RedisServer) -> None:
    """Owners get the time to renew before anybody takes their jobs: the answer is not started again."""
    stack = make_stack(own_redis.url, sim_itl_ms=20, lease_seconds=1)
    api, _ = stack.api(), stack.worker()
    async with Client(api.url) as client:
        body = chat("long outage", 200)
        job_id = await client.submit(body)
        heard = Heard()
        reading = asyncio.create_task(client.read(job_id, heard))
        await until(lambda: len(heard.ids) > 5, "it streams")
        own_redis.stop()
        loop = asyncio.get_running_loop()
        over = loop.time() + 2
        await until(lambda: loop.time() > over, "twice the lease has passed")
        own_redis.start()
        await reading
        assert heard.text == answer_to(body)


async def _status(client: Client, path: str, status: int) -> bool:
    try:
        return (await client.get(path)).status_code == status
    except httpx.HTTPError:
        return False
