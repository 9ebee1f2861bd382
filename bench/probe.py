"""A worker whose simulated engine notes on standard output when it is called, done and aborted.

Everything else is the product's worker. `Probe` reads the notes back from the worker's log.
"""

import os
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path

from common import logs
from common.events import DELTA, Event, token_count
from common.settings import Settings
from workers.engines.base import GenerationRequest, Resume
from workers.engines.simulated import SimulatedEngine
from workers.main import WorkerProcess

MARK = "probe"


class ProbedEngine(SimulatedEngine):
    async def generate(self, request: GenerationRequest, resume: Resume | None = None) -> AsyncGenerator[Event]:
        seed, made, end = request.body["seed"], 0, "abort"
        _note("call", seed, 0)
        try:
            async with aclosing(super().generate(request, resume)) as spoken:
                async for event in spoken:
                    if event["type"] == DELTA:
                        made += token_count(event)
                    yield event
            end = "done"
        finally:
            _note(end, seed, made)


def _note(what: str, seed: int, made: int) -> None:
    # In one write, because the log is read while it grows.
    os.write(sys.stdout.fileno(), f"{MARK} {what} {seed} {made} {time.time():.6f}\n".encode())


@dataclass
class Probe:
    """By the seed of a request: when the engine was called and aborted (Unix seconds), and tokens it made."""

    called: dict[int, float]
    aborted: dict[int, float]
    made: dict[int, int]

    @classmethod
    def read(cls, log: Path) -> "Probe":
        probe = cls({}, {}, {})
        for line in log.read_text(errors="replace").splitlines():
            if not line.startswith(MARK + " "):
                continue
            _, what, seed, made, at = line.split()
            if what == "call":
                probe.called[int(seed)] = float(at)
                continue
            probe.made[int(seed)] = int(made)
            if what == "abort":
                probe.aborted[int(seed)] = float(at)
        return probe

    @property
    def settled(self) -> bool:
        """Whether the engine holds no request."""
        return self.called.keys() == self.made.keys()


def main() -> int:
    settings = Settings()
    logs.setup(settings.log_level, f"worker[{os.getpid()}]")
    return WorkerProcess(settings, ProbedEngine(settings)).run()


if __name__ == "__main__":
    sys.exit(main())
