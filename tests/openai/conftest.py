"""The OpenAI SDK on two systems: the shared one with simulated tokens, and one whose answers follow a script."""

from collections.abc import AsyncIterator, Iterator

import pytest
from openai import AsyncOpenAI, OpenAI

from tests.support.processes import Stack


@pytest.fixture
def sdk(stack: Stack) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{stack.apis[0].url}/v1", api_key="unused", max_retries=0) as client:
        yield client


@pytest.fixture
async def async_sdk(stack: Stack) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=f"{stack.apis[1].url}/v1", api_key="unused", max_retries=0) as client:
        yield client


@pytest.fixture
def scripted(scripted_stack: Stack) -> Iterator[OpenAI]:
    """What it says is in tests/support/upstream.py."""
    with OpenAI(base_url=f"{scripted_stack.apis[0].url}/v1", api_key="unused", max_retries=0) as client:
        yield client
