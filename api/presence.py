"""Who reads what: so that a job whose reader left can be cancelled, and one whose reader moved to another pod is not.

`attached:{id}` is a sorted set of pods with an expiry each. A pod refreshes the keys of all its readers in one
pipeline; when it dies, its entries lapse and the worker (workers/watch.py) sees that nobody is left.
Only jobs with `on_disconnect=cancel` are tracked.
"""

import asyncio
import logging
from collections import Counter

from redis.exceptions import RedisError

from common import scripts
from common.connections import Client
from common.ending import Ender
from common.jobs import JobStore, ToEnd
from common.keys import Keys
from common.records import JobRecord

log = logging.getLogger(__name__)

REASON = "client_disconnected"


class Presence:
    def __init__(self, client: Client, jobs: JobStore, ender: Ender, keys: Keys, ttl_seconds: float) -> None:
        self._client = client
        self._jobs = jobs
        self._ender = ender
        self._keys = keys
        self._ttl = ttl_seconds
        self._readers: Counter[str] = Counter()
        self._new: set[str] = set()
        self._announcing = asyncio.Lock()
        self._leaving: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Refresh for ever, three times per time to live."""
        while True:
            await asyncio.sleep(self._ttl / 3)
            if self._readers:
                await self._refresh(list(self._readers))

    async def attach(self, record: JobRecord) -> None:
        """A reader has come. Returns when Redis knows, so that the reader may leave another pod."""
        if record.options.on_disconnect == "cancel" and not record.terminal:
            self._readers[record.id] += 1
            if self._readers[record.id] == 1:
                self._new.add(record.id)
            await self._announce()

    def detach(self, record: JobRecord, *, ended: bool, closing: bool) -> None:
        """A reader has left. `ended`: it saw the end. `closing`: this pod sent it away, so it will come back elsewhere.

        Returns at once; what follows from the leaving runs on in the background, as the caller may be cancelled.
        """
        if record.id not in self._readers:
            return
        self._readers[record.id] -= 1
        if self._readers[record.id] > 0:
            return
        del self._readers[record.id]
        self._new.discard(record.id)
        if closing or ended:
            # The entry lapses by itself: nobody asks for that of a job that has ended, and a reader that was sent away
            # has this time to come back.
            return
        # Without the record: it holds the whole request, and a grace may be long.
        leaving = self._left(record.id, record.options.grace_seconds)
        task = asyncio.create_task(leaving, name=f"left {record.id}")
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    async def settle(self, timeout: float) -> None:
        """Wait for departures under way, at a shutdown."""
        if self._leaving:
            await asyncio.wait(self._leaving, timeout=timeout)

    async def _left(self, job_id: str, grace_seconds: float) -> None:
        key = self._keys.attached(job_id)
        try:
            await self._announce()  # so that an attach under way is not behind the detach
            others = await scripts.detach(self._client, [key], [self._ender.caller])
            if job_id in self._readers:
                # Somebody came while the key was being removed.
                await self._refresh([job_id])
                return
            if others:
                return
            if grace_seconds > 0:
                await asyncio.sleep(grace_seconds)
                if job_id in self._readers or await self._client.exists(key):
                    return
            await cancel(self._jobs, self._ender, job_id, REASON)
        except (RedisError, OSError) as error:
            # The worker sees by itself that nobody is attached any more.
            log.warning("job %s: reader left, but Redis is away: %s", job_id, error)
        except Exception:
            log.exception("job %s: reader left, and its job could not be cancelled", job_id)

    async def _announce(self) -> None:
        """One script for all that have come while another was under way: hundreds may come at once."""
        async with self._announcing:
            new, self._new = self._new, set()
            if new:
                # It speaks for others, too, so it goes on when this caller is cancelled.
                await asyncio.shield(self._refresh(list(new)))

    async def _refresh(self, job_ids: list[str]) -> None:
        try:
            keys = [self._keys.attached(job_id) for job_id in job_ids]
            await scripts.attach(self._client, keys, [self._ender.caller, int(self._ttl * 1000)])
        except (RedisError, OSError) as error:
            log.warning("presence: cannot refresh %d jobs: %s", len(job_ids), error)


async def cancel(jobs: JobStore, ender: Ender, job_id: str, reason: str, *, forget: bool = False) -> str:
    """Cancel a job in any state; ends it right here if it was still waiting. Returns what was found (see JobStore)."""
    found = await jobs.cancel(job_id, reason, ender.caller, forget=forget)
    log.info("job %s: cancel (%s), it was %s", job_id, reason, found.state or found.outcome)
    if found.outcome == "claimed" and found.attempt is not None:
        await ender.end(ToEnd(job_id, found.attempt, reason))
    return found.state or found.outcome
