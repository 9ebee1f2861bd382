"""One run from the first process to the table."""

import asyncio
import contextlib
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from redis.exceptions import RedisError

from common.connections import command_client
from common.keys import Keys
from tests.chaos import schedule
from tests.chaos.audit import Audit
from tests.chaos.door import Door
from tests.chaos.faults import Faults
from tests.chaos.fleet import NAMESPACE, Fleet
from tests.chaos.ledger import Ledger
from tests.chaos.life import Life
from tests.chaos.listener import Listener
from tests.chaos.plan import plan

READY_SECONDS = 60.0
DRAIN_SECONDS = 60.0
SWEEP_SECONDS = 1.0
MAXLEN = 128
"""Less than two entries per token of the longest answer, so that the writer's budget matters."""


class Harness:
    def __init__(self, seed: int, minutes: float, pods: int, workers: int, clients: int, *, keep_logs: bool) -> None:
        self._keep_logs = keep_logs
        self._seconds = minutes * 60
        self._clients = clients
        self._seed = seed
        # Long enough for a reader that is kept away by several faults; short enough to be waited for at the end.
        self._ttl = min(40.0, max(20.0, self._seconds / 4))
        self._pods = pods
        self._workers = workers
        self._ledger = Ledger(seed)
        self._listeners: list[Listener] = []
        self._next = 0

    async def run(self) -> int:
        """Returns the process's exit code."""
        folder = tempfile.mkdtemp(prefix="tailrace-chaos-")
        try:
            print(f"logs are in {folder}")
            faults = schedule.draw(
                self._seed,
                self._seconds,
                {"pod": self._pods, "worker": self._workers, "link": self._pods + self._workers},
            )
            print(f"seed {self._seed}, {self._seconds:.0f} s, {len(faults)} faults:")
            print("\n".join(f"  {fault}" for fault in faults), flush=True)
            fleet = Fleet(Path(folder), self._pods, self._workers, self._settings(), self._ledger)
            try:
                await fleet.start()
                await self._inside(fleet, faults)
            finally:
                fleet.kill()
                await fleet.close()
        finally:
            # Whoever has a finding, or broke this off, wants to read them.
            if not self._keep_logs and not self._ledger.findings and sys.exception() is None:
                shutil.rmtree(folder)
        ledger = self._ledger
        print(ledger.table())
        print(ledger.last_line(), flush=True)
        return 1 if any(ledger.harms.values()) else 0

    def _settings(self) -> dict[str, Any]:
        return {
            "engine": "simulated",
            "sim_ttft_ms": 20,
            "sim_itl_ms": 8,
            "sim_jitter": 0.3,
            "sim_slots": 8,
            "lease_seconds": 1,
            "presence_ttl_seconds": 2,
            "retry_backoff_seconds": 0.1,
            "max_attempts": 1000,
            "stream_maxlen": MAXLEN,
            "stream_ttl_seconds": self._ttl + 1,  # a log is never gone before its record
            "result_ttl_seconds": self._ttl,
            "keepalive_seconds": 2,
            "first_event_wait_seconds": 2,
            "drain_seconds": 1,
        }

    async def _inside(self, fleet: Fleet, faults: list[schedule.Fault]) -> None:
        ledger, keys = self._ledger, Keys(NAMESPACE)
        redis = command_client(fleet.redis.url)
        audit = Audit(redis, keys, ledger, MAXLEN, self._ttl)
        door = Door(fleet.urls, ledger)
        await self._ready(door, fleet)
        ledger.started = time.monotonic()
        auditing = asyncio.create_task(self._audit(audit), name="audit")
        clients = [asyncio.create_task(self._client(door), name=f"client {i}") for i in range(self._clients)]
        await Faults(fleet, redis, keys, ledger).run(faults)
        await asyncio.gather(*clients)
        ledger.say("clients are done; waiting for what they left behind")
        if auditing.done():
            auditing.result()
        auditing.cancel()
        for job_id in await self._until(lambda: audit.sweep(), DRAIN_SECONDS):
            ledger.find("hung", f"job {job_id} (n={ledger.plans[job_id].n}) has not ended")
        await audit.sweep(final=True)
        audit.conclude(self._listeners)
        for key in await self._until(audit.unfinished_business, 5):
            ledger.find("leaked", f"key {key} though no job waits or runs")
        await door.close()
        ledger.say("stopping everything")
        ledger.leaked_processes = await fleet.stop()
        ledger.say(f"waiting up to {self._ttl:.0f} s for the last keys to expire")
        left = await self._until(audit.leaked_keys, self._ttl + 4)
        for key in left:
            ledger.say(f"leaked key {key}, ttl {await redis.pttl(key)} ms")
        ledger.leaked_keys = len(left)
        ledger.harms["leaked"] += ledger.leaked_keys + ledger.leaked_processes
        await redis.aclose()

    async def _ready(self, door: Door, fleet: Fleet) -> None:
        async with asyncio.timeout(READY_SECONDS):
            for pod in door.all:
                while True:
                    with contextlib.suppress(Exception):
                        health = (await pod.get("/health/ready")).json()
                        if health["status"] == "ok" and health["workers"] == len(fleet.workers):
                            break
                    await asyncio.sleep(0.1)

    async def _client(self, door: Door) -> None:
        """One job after another until the time is over."""
        while self._ledger.elapsed < self._seconds:
            self._next += 1
            life = Life(plan(self._seed, self._next), door, self._ledger)
            await life.run()
            self._listeners += life.listeners

    async def _audit(self, audit: Audit) -> None:
        while True:
            with contextlib.suppress(RedisError, OSError):
                await audit.sweep()
            await asyncio.sleep(SWEEP_SECONDS)

    async def _until(self, left: Callable[[], Coroutine[Any, Any, list[str]]], seconds: float) -> list[str]:
        """What is left when nothing is, or when the time is over."""
        deadline = time.monotonic() + seconds
        while True:
            rest = await left()
            if not rest or time.monotonic() > deadline:
                return rest
            await asyncio.sleep(0.2)
