"""The clients: cancelled commands leave nothing behind, for the next caller or for themselves."""

import asyncio
import contextlib
import random

import pytest
from redis.asyncio import Redis

from common.connections import command_client
from common.settings import Settings


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
