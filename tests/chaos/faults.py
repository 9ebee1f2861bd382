"""Doing what the schedule says, to whatever is there at that moment."""

import asyncio
import contextlib
import signal
from typing import cast

from redis.exceptions import RedisError

from common.connections import Client
from common.keys import Keys
from tests.chaos.fleet import Fleet, Slot
from tests.chaos.ledger import Ledger
from tests.chaos.proxy import Mode
from tests.chaos.schedule import Fault
from tests.support.client import MODEL


class Faults:
    def __init__(self, fleet: Fleet, redis: Client, keys: Keys, ledger: Ledger) -> None:
        self._fleet = fleet
        self._redis = redis
        self._keys = keys
        self._ledger = ledger
        self._redis_up = asyncio.Lock()

    async def run(self, schedule: list[Fault]) -> None:
        """All faults at their times; those that last may overlap. Everything is healed when it returns."""
        async with asyncio.TaskGroup() as group:
            for fault in schedule:
                await asyncio.sleep(fault.at - self._ledger.elapsed)
                group.create_task(self._do(fault), name=str(fault))

    async def _do(self, fault: Fault) -> None:
        what, victim = fault.kind.split()
        if victim == "pod":
            done = await self._hit(self._fleet.pods[fault.target], what, fault)
        elif victim in ("worker", "engine"):
            done = await self._hit(self._fleet.workers[fault.target], what, fault)
        elif victim == "link":
            done = await self._break_link(cast(Mode, what), fault)
        else:
            done = await self._trouble_redis(fault)
        self._ledger.counts["faults" if done else "faults that found nothing to hit"] += 1

    async def _hit(self, slot: Slot, what: str, fault: Fault) -> bool:
        process = slot.process
        # One that is on its way out may still be killed: half a shutdown is a state like others.
        if not (process.alive if what == "kill" else slot.usable):
            return False
        self._ledger.say(f"{fault.kind}: {slot.name}, pid {process.pid}")
        if what in ("kill", "break"):
            await self._note_struck(process.pid, fault.kind)
        if what == "kill":
            slot.hit(signal.SIGKILL, -signal.SIGKILL)
        elif what == "break":
            slot.hit(signal.SIGUSR1, 1, -signal.SIGUSR1)
        elif what == "term":
            slot.hit(signal.SIGTERM, 0, -signal.SIGTERM)
        else:
            slot.hit(signal.SIGSTOP)
            await asyncio.sleep(fault.seconds)
            if process.alive:
                process.signal(signal.SIGCONT)
        return True

    async def _note_struck(self, pid: int, how: str) -> None:
        """What this worker runs, to measure how long its readers wait. Best effort: Redis may be away."""
        with contextlib.suppress(RedisError, OSError, TimeoutError):
            async with asyncio.timeout(0.3):
                ids = [id.decode() for id in await self._redis.zrange(self._keys.running(MODEL), 0, -1)]
                async with self._redis.pipeline(transaction=False) as pipe:
                    for id in ids:
                        pipe.hmget(self._keys.job(id), ["state", "worker", "attempt"])
                    for id, (state, worker, attempt) in zip(ids, await pipe.execute(), strict=True):
                        if state == b"running" and f"-{pid}-".encode() in worker:
                            self._ledger.struck(id, int(attempt), how)

    async def _break_link(self, mode: Mode, fault: Fault) -> bool:
        link = self._fleet.links[fault.target]
        self._ledger.say(f"{fault.kind} of {self._fleet.slots[fault.target].name} for {fault.seconds} s")
        link.set(mode)
        await asyncio.sleep(fault.seconds)
        link.set("open")
        return True

    async def _trouble_redis(self, fault: Fault) -> bool:
        if self._redis_up.locked():
            return False
        self._ledger.say(f"{fault.kind}{f' for {fault.seconds} s' if fault.seconds else ''}")
        try:
            if fault.kind == "restart redis":
                async with self._redis_up:
                    await asyncio.to_thread(self._fleet.redis.stop)
                    await asyncio.sleep(fault.seconds)
                    await asyncio.to_thread(self._fleet.redis.start)
            elif fault.kind == "stop redis":
                async with self._redis_up:
                    await self._stop_redis(fault.seconds)
            elif fault.kind == "starve redis":
                await self._starve_redis(fault.seconds)
            elif fault.kind == "kill clients":
                await self._redis.client_kill_filter(_type="normal", skipme=True)
            else:
                await self._redis.client_pause(int(fault.seconds * 1000))
        except (RedisError, OSError):
            return False
        return True

    async def _stop_redis(self, seconds: float) -> None:
        process = self._fleet.redis.process
        assert process is not None
        process.signal(signal.SIGSTOP)
        try:
            await asyncio.sleep(seconds)
        finally:
            process.signal(signal.SIGCONT)

    async def _starve_redis(self, seconds: float) -> None:
        await self._redis.config_set("maxmemory", 1)
        await asyncio.sleep(seconds)
        while True:
            with contextlib.suppress(RedisError, OSError):
                await self._redis.config_set("maxmemory", 0)
                return
            await asyncio.sleep(0.1)
