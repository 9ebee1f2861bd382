"""The OpenAI SDK and plain HTTP, at the shared system's two pods."""

from collections.abc import AsyncIterator

import pytest
from openai import AsyncOpenAI

from tests.responses.support import sdk
from tests.support.processes import Stack


@pytest.fixture
async def openai(stack: Stack) -> AsyncIterator[AsyncOpenAI]:
    async with sdk(stack.apis[0].url) as client:
        yield client


@pytest.fixture
async def other_openai(stack: Stack) -> AsyncIterator[AsyncOpenAI]:
    async with sdk(stack.apis[1].url) as client:
        yield client


@pytest.fixture
async def scripted_openai(scripted_stack: Stack) -> AsyncIterator[AsyncOpenAI]:
    """What it says is in tests/support/upstream.py."""
    async with sdk(scripted_stack.apis[0].url) as client:
        yield client
