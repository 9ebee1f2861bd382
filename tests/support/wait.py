"""Waiting for conditions. No test sleeps for a fixed time."""

import asyncio
import inspect
import time
from collections.abc import Callable
from typing import Any


async def until(condition: Callable[[], Any], what: str, seconds: float = 60.0) -> Any:
    """The first truthy result of `condition`, which may be a coroutine function.

    Fails with `what` when it does not come within `seconds`.
    """
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        result = await value if inspect.isawaitable(value) else value
        if result:
            return result
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {seconds} s in vain for: {what}; last: {result!r}")
        await asyncio.sleep(0.01)
