"""A worker whose simulated engine dies at SIGUSR1 while the process lives on."""

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import AsyncGenerator

from common import logs
from common.events import Event
from common.settings import Settings
from workers.engines.base import EngineDied, GenerationRequest, Resume
from workers.engines.simulated import SimulatedEngine
from workers.main import WorkerProcess

log = logging.getLogger(__name__)


class MortalEngine(SimulatedEngine):
    _dead = False

    async def start(self) -> None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, self._die)
        await super().start()

    def healthy(self) -> bool:
        return not self._dead and super().healthy()

    async def generate(self, request: GenerationRequest, resume: Resume | None = None) -> AsyncGenerator[Event]:
        async with contextlib.aclosing(super().generate(request, resume)) as spoken:
            async for event in spoken:
                if self._dead:
                    raise EngineDied("chaos broke it")
                yield event

    def _die(self) -> None:
        self._dead = True
        log.warning("the engine is dead")
        for sequence in self._sequences:
            if not sequence.answer.news.done():
                sequence.answer.news.set_exception(EngineDied("chaos broke it"))


def main() -> int:
    settings = Settings()
    logs.setup(settings.log_level, f"worker[{os.getpid()}]")
    return WorkerProcess(settings, MortalEngine(settings)).run()


if __name__ == "__main__":
    sys.exit(main())
