"""What is measured: real processes, started for one run and stopped after it."""

import asyncio
import contextlib
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.processes import RedisServer, Stack


@dataclass
class System:
    """`ports` take OpenAI chat requests; `pids` by the name under which their CPU is counted."""

    name: str
    ports: list[int]
    pids: dict[str, list[int]]
    folder: Path
    stack: Stack | None = None
    extra: dict[str, Any] = field(default_factory=dict)


@contextlib.contextmanager
def tailrace(*, apis: int = 1, worker_module: str | None = None, **settings: Any) -> Iterator[System]:
    """Redis (append-only, as `tailrace up` runs it), `apis` API processes and one worker with the simulated engine."""
    with tempfile.TemporaryDirectory(prefix="tailrace-bench-") as name:
        folder = Path(name)
        redis = RedisServer(folder / "redis")
        stack = Stack(redis.url, folder / "stack", "bench", sim_stamp=1, **settings)
        try:
            stack.worker(module=worker_module)
            pods = [stack.api() for _ in range(apis)]
            assert redis.process
            pids = {
                "api": [pod.pid for pod in pods],
                "redis": [redis.process.pid],
                "worker": [stack.workers[0].pid],
                "client": [os.getpid()],
            }
            yield System("tailrace", [int(pod.url.rpartition(":")[2]) for pod in pods], pids, folder, stack)
        finally:
            stack.stop()
            redis.stop()


def run(coroutine: Any) -> Any:
    """In uvloop, as everything that is measured."""
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(coroutine)
