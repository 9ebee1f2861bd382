"""Ending background tasks."""

import asyncio
from collections.abc import Iterable
from typing import Any

REPEAT_SECONDS = 0.2


async def cancel_all(tasks: Iterable["asyncio.Task[Any]"]) -> None:
    """Cancel `tasks` and wait until they are done.

    More than once if need be: a cancellation that hits redis-py 5.3 while it connects can come out as a
    TimeoutError, which a loop that survives every Redis error survives, too.
    """
    pending = [task for task in tasks if not task.done()]
    while pending:
        for task in pending:
            task.cancel()
        _, still = await asyncio.wait(pending, timeout=REPEAT_SECONDS)
        pending = list(still)
