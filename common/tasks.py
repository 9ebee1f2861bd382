"""Ending background tasks."""

import asyncio
from collections.abc import Iterable
from typing import Any


async def cancel_all(tasks: Iterable["asyncio.Task[Any]"]) -> None:
    """Cancel `tasks` and wait until they are done, whatever they end with."""
    ending = list(tasks)
    for task in ending:
        task.cancel()
    await asyncio.gather(*ending, return_exceptions=True)
