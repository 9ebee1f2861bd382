"""The processes: one Redis, pods and workers in slots, and a supervisor that starts again what has died."""

import asyncio
import contextlib
import signal
import sys
import time
from pathlib import Path
from typing import Any

import psutil

from tests.chaos.ledger import Ledger
from tests.chaos.proxy import Link
from tests.support.processes import Process, RedisServer, free_port, tailrace
from tests.support.wait import until

NAMESPACE = "chaos"
RESTART_SECONDS = 0.3
END_SECONDS = 30.0
"""From SIGTERM to the end of a process, at most; more than its drain and all its timeouts for Redis."""


class Slot:
    """A place for one process after another; all of them write to the same log file."""

    def __init__(self, name: str, command: list[str], folder: Path, settings: dict[str, Any], ledger: Ledger) -> None:
        self.name = name
        self._command = command
        self._folder = folder
        self._env = {f"TAILRACE_{key.upper()}": str(value) for key, value in settings.items()}
        self._ledger = ledger
        self._fine_codes: set[int] = set()
        self._ending_since: float | None = None
        self._died_at: float | None = None
        self.process = self._start()

    @property
    def usable(self) -> bool:
        """Runs, and nothing has been done to end it."""
        return self.process.alive and not self._fine_codes

    def hit(self, signum: signal.Signals, *fine_codes: int) -> None:
        """`fine_codes`: how the process may end from now on. A process that gets none of them has to go on."""
        self.process.signal(signum)
        self._fine_codes.update(fine_codes)
        if fine_codes and self._ending_since is None:
            self._ending_since = time.monotonic()

    def look(self, *, restart: bool) -> None:
        """Called again and again: start the next process after a death, end one that does not end."""
        now = time.monotonic()
        if self.process.alive:
            if self._ending_since is not None and now - self._ending_since > END_SECONDS:
                self._ledger.find("hung", f"{self.name}: did not end within {END_SECONDS} s")
                self.process.kill()
        elif self._died_at is None:
            self._died_at = now
            code = self.process.wait()
            if code not in self._fine_codes:
                tail = "\n".join(self.process.log.splitlines()[-12:])
                self._ledger.find("hung", f"{self.name} ended with {code} and should not have:\n{tail}")
        elif restart and now - self._died_at > RESTART_SECONDS:
            self.process = self._start()

    def _start(self) -> Process:
        self._fine_codes, self._ending_since, self._died_at = set(), None, None
        return Process(self.name, self._command, self._folder, self._env)


class Fleet:
    """Each process reaches Redis over a link of its own that can be broken."""

    def __init__(self, folder: Path, pods: int, workers: int, settings: dict[str, Any], ledger: Ledger) -> None:
        self.redis = RedisServer(folder / "redis")
        self.ports = [free_port() for _ in range(pods)]
        self.links = [Link(free_port(), self.redis.port) for _ in range(workers + pods)]
        """Of the workers, then of the pods."""
        self.pods: list[Slot] = []
        self.workers: list[Slot] = []
        self._folder = folder
        self._settings = {"namespace": NAMESPACE, **settings}
        self._many = workers
        self._ledger = ledger
        self._supervisor: asyncio.Task[None] | None = None

    @property
    def urls(self) -> list[str]:
        return [f"http://127.0.0.1:{port}" for port in self.ports]

    async def start(self) -> None:
        for link in self.links:
            await link.start()
        settings = [{**self._settings, "redis_url": f"redis://127.0.0.1:{link.port}/0"} for link in self.links]
        for i in range(self._many):
            command = [sys.executable, "-m", "tests.chaos.worker"]
            self.workers.append(Slot(f"worker-{i}", command, self._folder, settings[i], self._ledger))
        for i, port in enumerate(self.ports):
            with_port = {**settings[self._many + i], "port": port}
            self.pods.append(Slot(f"pod-{i}", tailrace("api"), self._folder, with_port, self._ledger))
        self._supervisor = asyncio.create_task(self._supervise(), name="supervisor")

    @property
    def slots(self) -> list[Slot]:
        return [*self.workers, *self.pods]

    async def stop(self) -> int:
        """SIGTERM for all. Returns how many processes were left: those that had to be killed, and their children."""
        if self._supervisor:
            self._supervisor.cancel()
        for slot in self.slots:
            if slot.process.alive:
                slot.hit(signal.SIGCONT)
                if slot.usable:  # a second signal to one that is ending already would end it at once, with 143
                    slot.hit(signal.SIGTERM, 0, -signal.SIGTERM)
        with contextlib.suppress(AssertionError):
            await until(lambda: not any(slot.process.alive for slot in self.slots), "all have ended", END_SECONDS)
        for slot in self.slots:
            slot.look(restart=False)
        left = [process for process in psutil.process_iter() if self._is_ours(process)]
        for process in left:
            self._ledger.say(f"leaked process {process}")
        self.kill()
        return len(left)

    def kill(self) -> None:
        """Whatever happened before: nothing of ours lives on. Redis is left to its owner."""
        for slot in self.slots:
            slot.process.kill()

    async def close(self) -> None:
        for link in self.links:
            await link.stop()
        self.redis.stop()

    def _is_ours(self, process: psutil.Process) -> bool:
        try:
            url: str = process.environ().get("TAILRACE_REDIS_URL", "")
            return url.endswith(tuple(f":{link.port}/0" for link in self.links))
        except psutil.Error:
            return False

    async def _supervise(self) -> None:
        while True:
            for slot in self.slots:
                slot.look(restart=True)
            await asyncio.sleep(0.1)
