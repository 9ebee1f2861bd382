"""What is measured: real processes, started for one run and stopped after it."""

import asyncio
import contextlib
import os
import sys
import tempfile
import time
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import httpx
import uvloop

from bench.probe import Probe
from tests.support.processes import Process, RedisServer, Stack, free_port

T = TypeVar("T")
READY_SECONDS = 60.0
MARGIN_SECONDS = 15.0
"""How long the engine may take to let go of requests whose readers are gone."""


@dataclass
class System:
    """`ports` take OpenAI chat requests; `pids` by the name under which their CPU is counted."""

    name: str
    ports: list[int]
    pids: dict[str, list[int]]
    folder: Path
    stack: Stack | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.ports[0]}"

    def probe(self) -> Probe:
        """What the engine has noted, once it holds no request. For a worker started as `bench.probe`."""
        assert self.stack
        deadline = time.monotonic() + MARGIN_SECONDS
        while not (probe := Probe.read(self.stack.workers[0].log_path)).settled and time.monotonic() < deadline:
            time.sleep(0.1)
        return probe


@contextlib.contextmanager
def tailrace(*, apis: int = 1, probed: bool = False, **settings: Any) -> Iterator[System]:
    """Redis (append-only, as `tailrace up` runs it), `apis` API processes and one worker with the simulated engine."""
    with _folder() as folder:
        redis = RedisServer(folder / "redis")
        stack = Stack(redis.url, folder / "stack", "bench", **{"sim_stamp": 1, **settings})
        try:
            stack.worker(module="bench.probe" if probed else None)
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


@contextlib.contextmanager
def direct(**settings: Any) -> Iterator[System]:
    """The simulated engine in an OpenAI-style server of its own."""
    with _folder() as folder, _baseline("direct", folder, _environment(sim_stamp=1, **settings)) as (server, port):
        yield System("direct", [port], {"worker": [server.pid], "client": [os.getpid()]}, folder)


@contextlib.contextmanager
def proxy(**settings: Any) -> Iterator[System]:
    """The textbook proxy in front of `direct`."""
    with direct(**settings) as upstream:
        environment = {"BENCH_UPSTREAM": upstream.url}
        with _baseline("proxy", upstream.folder, environment) as (server, port):
            yield System("proxy", [port], {"api": [server.pid], **upstream.pids}, upstream.folder)


@contextlib.contextmanager
def per_client(**settings: Any) -> Iterator[System]:
    """Tailrace, whose streams are read by one XREAD per viewer. "api" is that reader alone, without the pod."""
    with tailrace(**settings) as inner:
        assert inner.stack
        environment = _environment(redis_url=inner.stack.redis_url, namespace=inner.stack.namespace)
        with _baseline("per_client", inner.folder, {"BENCH_UPSTREAM": inner.url, **environment}) as (server, port):
            pids = {"api": [server.pid], "pod": inner.pids["api"]}
            yield System("per_client", [port], {**inner.pids, **pids}, inner.folder, inner.stack)


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """In uvloop, as everything that is measured."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(coroutine)


def wait_until_live(url: str, process: Process, seconds: float = READY_SECONDS) -> None:
    """Until `url` answers 200. Raises AssertionError with the end of the log when it does not."""
    deadline = time.monotonic() + seconds
    while True:
        with contextlib.suppress(httpx.TransportError):
            if httpx.get(url, timeout=2).status_code == 200:
                return
        assert process.alive, f"{process.name} ended:\n{process.log[-2000:]}"
        assert time.monotonic() < deadline, f"{process.name} is not ready:\n{process.log[-2000:]}"
        time.sleep(0.05)


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="tailrace-bench-") as name:
        yield Path(name)


@contextlib.contextmanager
def _baseline(name: str, folder: Path, environment: dict[str, str]) -> Iterator[tuple[Process, int]]:
    port = free_port()
    process = Process(name, [sys.executable, "-m", f"bench.baselines.{name}", str(port)], folder, environment)
    try:
        wait_until_live(f"http://127.0.0.1:{port}/health/live", process)
        yield process, port
    finally:
        process.kill()


def _environment(**settings: Any) -> dict[str, str]:
    return {f"TAILRACE_{name.upper()}": str(value) for name, value in settings.items()}
