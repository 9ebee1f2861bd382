"""Redis goes away and comes back while everything runs."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from redis.asyncio import Redis

from tests.chaos.proxy import Link
from tests.conftest import MakeStack
from tests.support.client import Client, Heard, answer_to, chat
from tests.support.processes import RedisServer, free_port
from tests.support.wait import until


@pytest.fixture
def own_redis(tmp_path: Path) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path / "own-redis")
    yield server
    server.stop()


@pytest.mark.slow
async def test_streams_go_on_after_redis_comes_back(make_stack: MakeStack, own_redis: RedisServer) -> None:
    stack = make_stack(own_redis.url, sim_itl_ms=20, sim_slots=32)
    api, worker = stack.both()
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
async def test_cancels_are_heard_after_an_outage(make_stack: MakeStack, own_redis: RedisServer) -> None:
    """open-webui#26779: the stop listener dies silently after a Redis error. Ours goes on, and a metric tells."""
    port = free_port()
    stack = make_stack(own_redis.url, sim_itl_ms=10, worker_metrics_port=port)
    api, _ = stack.both()
    async with Client(api.url) as client, Client(f"http://127.0.0.1:{port}") as metrics:
        job_id = await client.submit(chat("cancel later", 1_000_000))
        await client.read(job_id, stop_after=3)
        own_redis.stop()
        await until(lambda: metrics.metric("tailrace_worker_watch_failures"), "the failed looks are counted")
        own_redis.start()
        await until(lambda: _status(client, "/health/ready", 200), "the pod is ready again")
        assert (await client.post(f"/v1/jobs/{job_id}/cancel")).status_code == 200
        heard = await client.read(job_id)
        assert heard.end
        assert heard.end["status"] == "cancelled"


@pytest.mark.slow
async def test_an_outage_does_not_look_like_readers_that_left(make_stack: MakeStack, own_redis: RedisServer) -> None:
    """Presence lapses while Redis is away; connected readers' jobs, running and waiting, go on all the same."""
    stack = make_stack(own_redis.url, sim_itl_ms=20, sim_slots=2, presence_ttl_seconds=2)
    api, worker = stack.both()
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
    api, _ = stack.both()
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


async def _tell(redis: Redis, **options: str) -> None:
    for name, value in options.items():
        await redis.config_set(name.replace("_", "-"), value)


async def _out_of_memory(redis: Redis, _: Path) -> None:
    await _tell(redis, maxmemory="1", maxmemory_policy="noeviction")


async def _full_disk(redis: Redis, folder: Path) -> None:
    """A snapshot that fails makes Redis refuse writes (MISCONF): its file cannot be put where a folder is."""
    (folder / "occupied").mkdir(exist_ok=True)
    await _tell(redis, save="3600 1", dbfilename="occupied")
    await redis.bgsave()

    async def failed() -> bool:
        return bool((await redis.info("persistence"))["rdb_last_bgsave_status"] == "err")

    await until(failed, "the snapshot has failed")


async def _recover(redis: Redis) -> None:
    await _tell(redis, maxmemory="0", save="")


@pytest.mark.slow
@pytest.mark.parametrize("fault", [_out_of_memory, _full_disk])
async def test_a_redis_that_refuses_writes(
    make_stack: MakeStack, own_redis: RedisServer, tmp_path: Path, fault: Callable[[Redis, Path], Awaitable[None]]
) -> None:
    """`OOM command not allowed`, `MISCONF`: an outage like any other. What runs waits, what comes gets a 503."""
    stack = make_stack(own_redis.url, sim_itl_ms=10, lease_seconds=1)
    api, worker = stack.both()
    redis: Redis = Redis.from_url(own_redis.url)
    async with Client(api.url) as client:
        body = chat("refused", 1_000_000)
        heard = Heard()
        job_id = await client.submit(body)
        reading = asyncio.create_task(client.read(job_id, heard))
        await until(lambda: len(heard.ids) > 10, "it streams")
        await fault(redis, tmp_path / "own-redis")
        response = await client.post("/v1/jobs", json=chat("not now", 1))
        assert response.status_code == 503, response.text
        assert response.json()["error"]["code"] == "redis_unavailable"
        await until(lambda: "writer: Redis is away" in worker.log, "the writer waits")
        await _recover(redis)
        seen = len(heard.ids)
        await until(lambda: len(heard.ids) > seen + 10, "it goes on")
        await client.patch(f"/v1/jobs/{job_id}", json={"max_tokens": 1})
        await reading
        assert heard.text == answer_to(body, heard.text.count(" "))
        assert heard.ends == 1
    await redis.aclose()


@pytest.mark.slow
async def test_a_slow_redis(make_stack: MakeStack, own_redis: RedisServer) -> None:
    """200 ms on every reply: entries get larger, the answers stay whole, and nobody loses a lease."""
    link = Link(free_port(), own_redis.port)
    await link.start()
    link.set("slow")
    stack = make_stack(f"redis://127.0.0.1:{link.port}/0", sim_itl_ms=5)
    # The pods' and the worker's starts wait for Redis too, so this loop must serve the link meanwhile.
    api = await asyncio.to_thread(stack.api)
    await asyncio.to_thread(stack.worker)
    async with Client(api.url) as client:
        bodies = [chat(f"slow {i}", 200) for i in range(8)]
        heard = await asyncio.gather(*(_submit_and_read(client, body) for body in bodies))
        for body, one in zip(bodies, heard, strict=True):
            assert one.text == answer_to(body)
            assert len(one.started) == 1
            assert len(one.ids) < 100, "200 tokens share fewer entries"
    await link.stop()


async def _submit_and_read(client: Client, body: dict[str, Any]) -> Heard:
    return await client.read(await client.submit(body))
