"""Background tasks: those that run for ever, and their end."""

import asyncio
import logging
from collections.abc import Coroutine, Iterable
from typing import Any

log = logging.getLogger(__name__)


def spawn(name: str, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
    """Run `work`, which never ends by itself. If it does so by an error, the log says it at once."""
    task = asyncio.create_task(work, name=name)
    task.add_done_callback(_complain)
    return task


async def cancel_all(tasks: Iterable["asyncio.Task[Any]"]) -> None:
    """Cancel `tasks` and wait until they are done, whatever they end with."""
    ending = list(tasks)
    for task in ending:
        task.cancel()
    await asyncio.gather(*ending, return_exceptions=True)


def _complain(task: "asyncio.Task[None]") -> None:
    if not task.cancelled() and (error := task.exception()):
        log.critical("background task %s died", task.get_name(), exc_info=error)
