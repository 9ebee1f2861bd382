"""Sends to clients that do not read: cut after a while, and told apart from a cancel by somebody else."""

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
from starlette.websockets import WebSocketState

from api.routes.ws import Session
from api.sends import Sends, SendTimedOut
from common.tasks import cancel_all


@pytest.fixture
async def sends() -> AsyncIterator[Sends]:
    sends = Sends(timeout_seconds=0.1)
    running = asyncio.create_task(sends.run())
    yield sends
    await cancel_all([running])


async def never(_: str) -> None:
    await asyncio.Event().wait()


async def test_a_send_that_takes_too_long_is_cut_and_its_task_goes_on(sends: Sends) -> None:
    sent: list[str] = []

    async def at_once(message: str) -> None:
        sent.append(message)

    async def reader() -> int:
        with pytest.raises(SendTimedOut):
            await sends.send(never, "lost")
        await sends.send(at_once, "heard")
        task = asyncio.current_task()
        assert task
        return task.cancelling()

    assert await asyncio.create_task(reader()) == 0
    assert sent == ["heard"]


async def test_somebody_elses_cancel_passes(sends: Sends) -> None:
    task = asyncio.create_task(sends.send(never, "x"))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_somebody_elses_cancel_wins_when_both_come_at_once(sends: Sends) -> None:
    async def cancelled_with_the_cut(_: str) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            task.cancel()

    task = asyncio.create_task(sends.send(cancelled_with_the_cut, "x"))
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_websocket_whose_client_does_not_read_its_answers_ends_in_order(sends: Sends) -> None:
    class Deaf:
        application_state = WebSocketState.CONNECTED

        async def receive(self) -> dict[str, str]:
            return {"type": "websocket.receive", "text": "{}"}

        async def send_text(self, text: str) -> None:
            await never(text)

    pod, socket = SimpleNamespace(sends=sends), Deaf()
    await Session(cast(Any, pod), cast(Any, socket), "alice").run()
