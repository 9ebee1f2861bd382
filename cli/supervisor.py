"""Keeps the children of `tailrace up`: none may die during the start; later the dead are replaced."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from cli.failure import Failure
from cli.logfiles import last_words
from cli.processes import Child
from common.tasks import cancel_all

T = TypeVar("T")

FIRST_DELAY_SECONDS = 1.0
LONGEST_DELAY_SECONDS = 30.0
SETTLED_SECONDS = 60.0
"""A child that lived this long and dies is a new misfortune, not the same one again."""
HURRY_SECONDS = 3.0
"""Patience with children that have not served yet: they have nothing to finish, and a loading engine hears nothing."""


class Supervisor:
    """Children in stages. Each stage needs those before it, so they are stopped backwards.

    `tell` takes one line for the user.
    """

    def __init__(self, tell: Callable[[str], None]) -> None:
        self.stopping = False
        self._serving = False
        self._tell = tell
        self._stages: list[list[Child]] = []
        self._helper: Child | None = None

    async def start(self, *stage: Child) -> None:
        self._stages.append(list(stage))
        for child in stage:
            await child.start()

    async def run(self, helper: Child) -> None:
        """Run `helper` to its end. Raises Failure when it fails, or when one of the others dies meanwhile."""
        self._helper = helper
        await helper.start()
        if await self.until(helper.wait()) != 0:
            raise _death(helper)

    async def until(self, condition: Coroutine[Any, Any, T]) -> T:
        """`condition`'s result. Raises Failure as soon as a child dies before there is one."""
        waiting = asyncio.create_task(condition)
        deaths = [asyncio.create_task(child.wait()) for child in self._children()]
        try:
            await asyncio.wait([waiting, *deaths], return_when=asyncio.FIRST_COMPLETED)
            if not waiting.done():
                raise _death(next(child for child in self._children() if not child.running))
            return waiting.result()
        finally:
            await cancel_all([waiting, *deaths])

    async def keep_running(self) -> None:
        """Replace whatever dies, for ever. The start is over."""
        self._serving = True
        async with asyncio.TaskGroup() as group:
            for child in self._children():
                group.create_task(self._keep(child), name=f"keep {child.name}")

    async def stop(self) -> None:
        """End all children, the last stage first."""
        self.stopping = True
        if self._helper:
            await self._stop(self._helper)
        for stage in reversed(self._stages):
            await asyncio.gather(*(self._stop(child) for child in stage))

    def kill(self) -> None:
        """End all children now. `stop` still has to be awaited."""
        for child in (*self._children(), *([self._helper] if self._helper else [])):
            child.kill()

    def _children(self) -> list[Child]:
        return [child for stage in self._stages for child in stage]

    async def _keep(self, child: Child) -> None:
        delay = FIRST_DELAY_SECONDS
        while True:
            await child.wait()
            if child.age > SETTLED_SECONDS:
                delay = FIRST_DELAY_SECONDS
            self._tell(f"{child.name}: {child.fate}: {last_words(child.log)} (starts again in {delay:g} s)")
            await asyncio.sleep(delay)
            await child.start()
            delay = min(2 * delay, LONGEST_DELAY_SECONDS)

    async def _stop(self, child: Child) -> None:
        patience = child.patience if self._serving else HURRY_SECONDS
        if not await child.stop(patience):
            self._tell(f"{child.name}: killed, it did not stop within {patience:g} s")


def _death(child: Child) -> Failure:
    return Failure(f"{child.name} ended during the start ({child.fate}): {last_words(child.log)} (log: {child.log})")
