"""The OpenAI SDK on two systems: the shared one with simulated tokens, and one whose answers follow a script."""

import secrets
from collections.abc import AsyncIterator, Iterator

import pytest
from openai import AsyncOpenAI, OpenAI

from tests.openai.upstream import ScriptedUpstream
from tests.support.processes import RedisServer, Stack


@pytest.fixture
def sdk(stack: Stack) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{stack.apis[0].url}/v1", api_key="unused", max_retries=0) as client:
        yield client


@pytest.fixture
async def async_sdk(stack: Stack) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=f"{stack.apis[1].url}/v1", api_key="unused", max_retries=0) as client:
        yield client


@pytest.fixture(scope="session")
def upstream() -> Iterator[ScriptedUpstream]:
    upstream = ScriptedUpstream()
    yield upstream
    upstream.stop()


@pytest.fixture(scope="session")
def scripted_stack(
    redis_server: RedisServer, upstream: ScriptedUpstream, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("scripted")
    stack = Stack(redis_server.url, folder, f"t{secrets.token_hex(4)}", engine="openai", upstream_url=upstream.url)
    stack.api()
    stack.worker()
    yield stack
    stack.stop()


@pytest.fixture
def scripted(scripted_stack: Stack) -> Iterator[OpenAI]:
    """What it says is in tests/openai/upstream.py."""
    with OpenAI(base_url=f"{scripted_stack.apis[0].url}/v1", api_key="unused", max_retries=0) as client:
        yield client
