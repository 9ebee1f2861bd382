"""Fixtures: one private Redis for the whole run, and a running system on the simulated engine."""

import gc
import os
import secrets
import signal
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from redis.asyncio import Redis

from common.connections import command_client
from common.settings import Settings
from tests.support.client import Client
from tests.support.processes import RedisServer, Stack
from tests.support.upstream import ScriptedUpstream

# On a busy machine an example may take any time.
hypothesis.settings.register_profile("any time", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("any time")

# A developer's own settings must not change what is tested.
for _name in [name for name in os.environ if name.startswith("TAILRACE_")]:
    del os.environ[_name]


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Report a failure without garbage collection.

    Reporting parses the source. If meanwhile the collector finalizes something that warns, and that warning's
    traceback parses source as well, CPython 3.11 raises "AST constructor recursion depth mismatch" instead.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


# Started in the background, a shell's children ignore SIGINT, and so would ours, which are to be stopped by it.
signal.signal(signal.SIGINT, signal.default_int_handler)
# `timeout` and CI systems send SIGTERM, which would end the run without its teardown: engines would live on.
signal.signal(signal.SIGTERM, signal.default_int_handler)

MakeStack = Callable[..., Stack]


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    yield server
    server.stop()


@pytest.fixture(scope="session")
async def redis(redis_server: RedisServer) -> AsyncIterator[Redis]:
    client: Redis = Redis.from_url(redis_server.url)
    yield client
    await client.aclose()


@pytest.fixture
def settings(redis_server: RedisServer) -> Settings:
    """Settings with a namespace that no other test uses."""
    return Settings(redis_url=redis_server.url, namespace=f"t{secrets.token_hex(4)}", engine="simulated")


@pytest.fixture
async def control(redis_server: RedisServer) -> AsyncIterator[Redis]:
    """A command client as pods and workers use it."""
    client = command_client(redis_server.url)
    yield client
    await client.aclose()


@pytest.fixture
def make_stack(redis_server: RedisServer, tmp_path: Path) -> Iterator[MakeStack]:
    """Start a system of one's own: `make_stack(sim_itl_ms=20)`. Everything it starts is killed at the end."""
    stacks: list[Stack] = []

    def make(redis_url: str | None = None, **settings: Any) -> Stack:
        folder = tmp_path / f"stack-{len(stacks)}"
        stack = Stack(redis_url or redis_server.url, folder, f"t{secrets.token_hex(4)}", **settings)
        stacks.append(stack)
        return stack

    yield make
    for stack in stacks:
        stack.stop()


@pytest.fixture(scope="session")
def stack(redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """The system that most tests share: two pods and one worker, fast simulated tokens."""
    stack = Stack(redis_server.url, tmp_path_factory.mktemp("stack"), f"t{secrets.token_hex(4)}", sim_slots=256)
    stack.api()
    stack.both()
    yield stack
    stack.stop()


@pytest.fixture(scope="session")
def upstream() -> Iterator[ScriptedUpstream]:
    upstream = ScriptedUpstream()
    yield upstream
    upstream.stop()


@pytest.fixture(scope="session")
def scripted_stack(
    redis_server: RedisServer, upstream: ScriptedUpstream, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stack]:
    """A system whose answers follow a script: it is in tests/support/upstream.py."""
    folder = tmp_path_factory.mktemp("scripted")
    stack = Stack(redis_server.url, folder, f"t{secrets.token_hex(4)}", engine="openai", upstream_url=upstream.url)
    stack.both()
    yield stack
    stack.stop()


@pytest.fixture
async def client(stack: Stack) -> AsyncIterator[Client]:
    async with Client(stack.apis[0].url) as client:
        yield client


@pytest.fixture
async def other(stack: Stack) -> AsyncIterator[Client]:
    """The second pod of the shared system."""
    async with Client(stack.apis[1].url) as client:
        yield client
