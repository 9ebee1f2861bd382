"""One system for all clients: two pods that ask for a key, and two models: `simulated`, and `echo` of upstream.py."""

import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.support.client import Client
from tests.support.processes import Process, RedisServer, Stack, answers, free_port, wait_for
from tests.test_auth import KEYS, digest

KEY = KEYS["alice"]


@pytest.fixture(scope="package")
def upstream_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    port = free_port()
    command = [sys.executable, "-m", "tests.clients.upstream", str(port)]
    upstream = Process("upstream", command, tmp_path_factory.mktemp("upstream"))
    url = f"http://127.0.0.1:{port}/v1"
    wait_for(lambda: answers(f"{url}/models"), upstream)
    yield url
    upstream.kill()


@pytest.fixture(scope="package")
def system(redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory, upstream_url: str) -> Iterator[Stack]:
    folder: Path = tmp_path_factory.mktemp("clients")
    stack = Stack(redis_server.url, folder, "clients", api_keys=f"alice:{digest(KEY)}")
    stack.api()
    stack.both()
    stack.worker(engine="openai", upstream_url=upstream_url)
    yield stack
    stack.stop()


@pytest.fixture
async def pod(system: Stack) -> AsyncIterator[Client]:
    """The first pod as Tailrace's own API shows it."""
    async with Client(system.apis[0].url, headers={"Authorization": f"Bearer {KEY}"}) as client:
        yield client
