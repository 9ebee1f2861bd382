"""Sends to clients that do not read are cut after a while.

A timer for each send costs more than the send (asyncio's 5 µs, anyio's 7 µs), and nearly every send returns at once,
because its bytes fit into the socket's buffer. So one task looks, ten times per timeout, at those that have not.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

Message = TypeVar("Message")


class SendTimedOut(TimeoutError):
    """The client does not read."""


class Sends:
    """`run` must be running."""

    def __init__(self, timeout_seconds: float) -> None:
        self._timeout = timeout_seconds
        self._since: dict[asyncio.Task[Any], float] = {}
        self._cut: set[asyncio.Task[Any]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None

    async def send(self, send: Callable[[Message], Awaitable[None]], message: Message) -> None:
        """`await send(message)`. Raises SendTimedOut when that takes `timeout_seconds`, or a tenth more."""
        task = asyncio.current_task(self._loop)
        assert task
        self._since[task] = time.monotonic()
        try:
            await send(message)
        except asyncio.CancelledError:
            # More than our own cancel: somebody else wants the task to end.
            if task not in self._cut or task.uncancel():
                raise
            raise SendTimedOut from None
        finally:
            del self._since[task]
            self._cut.discard(task)

    async def run(self) -> None:
        # Kept, because Python 3.11 looks it up with a system call.
        self._loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(self._timeout / 10)
            before = time.monotonic() - self._timeout
            for task in [task for task, since in self._since.items() if since < before]:
                self._cut.add(task)
                task.cancel()
