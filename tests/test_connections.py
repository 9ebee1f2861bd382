"""The clients: cancelled commands leave nothing behind, and nobody stays with a master that is none any more."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis
from redis.exceptions import RedisError

from common import scripts
from common.connections import Client, blocking_client, command_client, is_outage
from common.settings import Settings
from tests.chaos.proxy import Link
from tests.support.processes import RedisServer, free_port
from tests.support.wait import until
from workers.pipe import Pipe


async def test_cancelled_commands_never_answer_somebody_else(control: Redis, settings: Settings) -> None:
    """redis-py#2665: a cancelled command leaves its reply for the next caller, who sees another user's data."""
    chance = random.Random(1)
    keys = [f"{settings.namespace}:{i}" for i in range(100)]
    await control.mset({key: key for key in keys})
    answered = cancelled = 0

    async def read(key: str) -> None:
        nonlocal answered, cancelled
        getting = asyncio.ensure_future(control.get(key))
        if chance.random() < 0.7:
            for _ in range(chance.randrange(4)):
                await asyncio.sleep(0)
            getting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            assert await getting == key.encode()
            answered += 1
            return
        cancelled += 1

    for _ in range(100):
        await asyncio.gather(*(read(key) for key in keys))
    assert answered + cancelled == 10_000
    assert cancelled > 1_000
    await control.delete(*keys)


async def test_a_cancellation_is_never_swallowed(settings: Settings) -> None:
    """asyncio.wait_for, through which redis-py sends, may do so before Python 3.12; then a task never ends."""
    chance = random.Random(2)
    for _ in range(200):
        client = command_client(settings.redis_url)

        async def loop(client: Redis) -> None:
            while True:
                with contextlib.suppress(OSError):
                    await client.ping()

        tasks = [asyncio.create_task(loop(client)) for _ in range(3)]
        await asyncio.sleep(chance.uniform(0, 0.004))
        for task in tasks:
            task.cancel()
        _, pending = await asyncio.wait(tasks, timeout=10)
        assert not pending
        await client.aclose()


def test_a_url_does_not_choose_the_protocol() -> None:
    """RESP3 replies XREAD as a map, which the hub does not read."""
    with pytest.raises(ValueError, match="protocol"):
        Settings(redis_url="redis://localhost?protocol=3")


class Moved:
    """A plain URL (a host name, a virtual address) that led to one master and now leads to another.

    The first one lives on as a replica, and keeps the connections that it has.
    """

    def __init__(self, folder: Path) -> None:
        self._first, self._second = (RedisServer(folder / name) for name in ("first", "second"))
        self._link = Link(free_port(), self._first.port)
        self.url = f"redis://127.0.0.1:{self._link.port}/0"

    async def start(self) -> None:
        await self._link.start()

    async def move(self) -> None:
        self._link.redis_port = self._second.port
        async with Redis.from_url(self._first.url) as first:
            await first.replicaof("127.0.0.1", str(self._second.port))

    async def blocked(self) -> bool:
        async with Redis.from_url(self._first.url) as first:
            return any("b" in client["flags"] for client in await first.client_list())

    async def stop(self) -> None:
        await self._link.stop()
        for server in (self._first, self._second):
            assert server.process
            server.process.kill()  # one that writes its file for a new replica does not stop in order


@pytest.fixture
async def moved(tmp_path: Path) -> AsyncIterator[Moved]:
    moved = Moved(tmp_path)
    await moved.start()
    yield moved
    await moved.stop()


async def _command(client: Client) -> Any:
    return await client.set("k", 1)


async def _pipeline(client: Client) -> Any:
    async with client.pipeline(transaction=False) as pipe:
        pipe.set("k", 1)
        return await pipe.execute()


async def _script(client: Client) -> Any:
    return await scripts.attach(client, ["k"], ["pod", 1000])


@pytest.mark.parametrize("write", [_command, _pipeline, _script])
async def test_a_master_that_became_a_replica_is_left(moved: Moved, write: Callable[[Client], Awaitable[Any]]) -> None:
    client = command_client(moved.url)
    assert await write(client)
    await moved.move()
    assert await write(client)
    await client.aclose()


async def test_the_writers_pipe_leaves_it_too(moved: Moved) -> None:
    client = command_client(moved.url)
    pipe = Pipe(client)
    assert await pipe.exchange([("SET", "k", 1), ("GET", "k")]) == [b"OK", b"1"]
    await moved.move()
    assert await pipe.exchange([("SET", "k", 2), ("GET", "k")]) == [b"OK", b"2"]
    await client.aclose()


async def test_a_blocked_read_is_ended_as_by_an_outage(moved: Moved) -> None:
    client = blocking_client(moved.url, 60)
    reading = asyncio.ensure_future(client.xread({"stream": "0"}, block=60_000))
    await until(moved.blocked, "the read is blocked")
    await moved.move()
    with pytest.raises(RedisError) as ended:
        await reading
    assert is_outage(ended.value)
    await client.aclose()


async def test_a_blocking_read_leaves_it_too(moved: Moved) -> None:
    """BLPOP counts as a write."""
    client = blocking_client(moved.url, 1)
    await client.ping()
    await moved.move()
    assert await client.blpop(["list"], 0.01) is None  # type: ignore[misc, arg-type]
    await client.aclose()
