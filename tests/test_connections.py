"""What counts as a Redis that cannot serve now."""

import secrets
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from redis.asyncio import Redis
from redis.exceptions import ResponseError

from common.connections import command_client, is_outage
from common.jobs import JobStore
from common.records import JobRequest
from common.settings import Settings
from tests.support.client import chat
from tests.support.processes import RedisServer


@pytest.fixture
async def full_redis(tmp_path: Path) -> AsyncIterator[RedisServer]:
    """A Redis that is out of memory: it reads, and refuses what needs more."""
    server = RedisServer(tmp_path)
    async with Redis.from_url(server.url) as client:
        await client.config_set("maxmemory", 1)
    yield server
    server.stop()


async def test_out_of_memory_inside_a_script_is_an_outage(full_redis: RedisServer) -> None:
    """Redis 6 wraps the error; found by chaos as 500 `internal_error` for every submit, cancel and delete."""
    client = command_client(full_redis.url)
    jobs = JobStore(client, Settings(redis_url=full_redis.url))
    request = JobRequest(f"job-{secrets.token_hex(16)}", "chat", "simulated", "", chat())
    with pytest.raises(ResponseError) as refused:
        await jobs.submit(request)
    assert is_outage(refused.value)
    assert await client.dbsize() == 0, "a refused submit leaves nothing behind"
    await client.aclose()


@pytest.mark.parametrize("reply", ["MISCONF Redis is configured to save", "READONLY You can't write"])
def test_what_a_script_reports_of_its_commands(reply: str) -> None:
    wrapped = f"Error running script (call to f_0123): @user_script:7: @user_script: 7: -{reply} against it."
    assert is_outage(ResponseError(reply))
    assert is_outage(ResponseError(wrapped))
    assert not is_outage(ResponseError(wrapped.replace(f"-{reply}", "-WRONGTYPE Operation")))
    assert not is_outage(ResponseError("Error running script (call to f_0123): @user_script:7: attempt to index nil"))
