"""A control plane managed by Sentinel: its master dies, a replica takes over, and nobody is told."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis.asyncio import Redis
from redis.exceptions import ConnectionError

from common.connections import SentinelPlace, parse_sentinel_url
from tests.conftest import MakeStack
from tests.support.client import Client, Heard, answer_to, chat
from tests.support.processes import Process, RedisServer, free_port, redis_binary
from tests.support.wait import until

MASTER = "tailrace"


class Managed:
    """A master, a replica and one sentinel, which is enough for a quorum of one."""

    def __init__(self, folder: Path) -> None:
        self.master = RedisServer(folder / "master")
        self.replica = RedisServer(folder / "replica", replicaof=f"127.0.0.1 {self.master.port}")
        port = free_port()
        config = folder / "sentinel.conf"
        config.write_text(
            f"port {port}\nbind 127.0.0.1\ndir {folder}\n"
            f"sentinel monitor {MASTER} 127.0.0.1 {self.master.port} 1\n"
            f"sentinel down-after-milliseconds {MASTER} 2000\n"
            f"sentinel failover-timeout {MASTER} 2000\n"
        )
        self.sentinel = Process("sentinel", [redis_binary(), str(config), "--sentinel"], folder)
        self.url = f"redis+sentinel://127.0.0.1:{port}/{MASTER}/0"

    def stop(self) -> None:
        for process in (self.sentinel, self.replica.process, self.master.process):
            if process and process.alive:
                process.kill()


@pytest.fixture
def managed(tmp_path: Path) -> Iterator[Managed]:
    managed = Managed(tmp_path / "sentinel")
    yield managed
    managed.stop()


@pytest.mark.slow
async def test_a_failover_of_the_control_plane(
    make_stack: MakeStack, managed: Managed, redis_server: RedisServer
) -> None:
    replica: Redis = Redis.from_url(managed.replica.url)

    async def in_sync() -> bool:
        return bool((await replica.info("replication")).get("master_link_status") == "up")

    await until(in_sync, "the replica follows")
    stack = make_stack(managed.url, stream_redis_url=redis_server.url, sim_itl_ms=20)
    api, worker = stack.both()
    async with Client(api.url) as client:
        bodies = [chat(f"failover {i}", 500) for i in range(5)]
        ids = [await client.submit(body) for body in bodies]
        heard = [Heard() for _ in ids]
        reading = [asyncio.create_task(client.read(id, one)) for id, one in zip(ids, heard, strict=True)]
        await until(lambda: all(len(one.ids) > 10 for one in heard), "all streams flow")
        assert managed.master.process
        managed.master.process.kill()

        async def promoted() -> bool:
            try:
                return bool((await replica.info("replication"))["role"] == "master")
            except ConnectionError:  # with the promotion, Sentinel cuts every connection of the replica's clients
                return False

        # A Sentinel that was not scheduled for two seconds trusts nobody's clock and does nothing for 30.
        await until(promoted, "the replica is the master", seconds=90)
        await asyncio.gather(*reading)
        for body, one in zip(bodies, heard, strict=True):
            assert one.text == answer_to(body)
            assert one.ends == 1
        for job_id in ids:
            await until(lambda: _ended(client, job_id), "the record is on the new master")  # noqa: B023
        after = chat("after", 5)
        assert (await client.read(await client.submit(after))).text == answer_to(after)
        assert api.alive
        assert worker.alive
    await replica.aclose()


async def _ended(client: Client, job_id: str) -> bool:
    response = await client.get(f"/v1/jobs/{job_id}")
    return response.status_code == 200 and response.json()["status"] == "incomplete"


def test_sentinel_urls() -> None:
    assert parse_sentinel_url("redis+sentinel://a:1,b:2/main/3") == SentinelPlace(
        [("a", 1), ("b", 2)], "main", 3, None, None
    )
    with_password = parse_sentinel_url("redis+sentinel://u:p%40ss@a:1/main")
    assert (with_password.username, with_password.password, with_password.db) == ("u", "p@ss", 0)
    for wrong in ("redis+sentinel://a:1", "redis+sentinel://a/main", "redis+sentinel://a:x/main"):
        with pytest.raises(ValueError):
            parse_sentinel_url(wrong)
