"""Every reason why a running job may have to stop or change its course, watched for all jobs of the process.

The cancel and steer keys of all running jobs are read with one MGET every `CANCEL_POLL_MS`. A key stays until its
job has ended, so a cut connection at the moment of the cancel changes nothing (aegra#529). Timeouts need no timer per
token: a job notes when it last moved, and the same loop looks. Every second, jobs that only live for a connected
reader are checked for one, in case the pod that would have cancelled them died.
"""

import asyncio
import logging
import time
from typing import Protocol

from redis.exceptions import RedisError

from common.connections import Client
from common.keys import Keys
from common.settings import Settings

log = logging.getLogger(__name__)

PRESENCE_PERIOD_SECONDS = 1.0
ABANDONED = "abandoned"
"""Reason of a cancel when nobody reads a job that lives for its reader."""


class Stoppable(Protocol):
    """What the watch needs to know of a running job. Times are of time.monotonic()."""

    @property
    def id(self) -> str: ...

    @property
    def needs_reader(self) -> bool: ...

    @property
    def reader_seen_at(self) -> float: ...

    @reader_seen_at.setter
    def reader_seen_at(self, value: float) -> None: ...

    @property
    def grace_seconds(self) -> float: ...

    def overdue(self, now: float) -> str | None:
        """The code of the timeout that has passed, or None."""

    def stop(self, why: str) -> None: ...

    def steer(self, version: int) -> None:
        """The job's parameters have been changed for the `version`th time; called again and again."""


class Watch:
    def __init__(self, control: Client, stream: Client, keys: Keys, settings: Settings) -> None:
        self.jobs: set[Stoppable] = set()
        self.last_poll = time.time()
        self.failures = 0
        self._control = control
        self._stream = stream
        self._keys = keys
        self._period = settings.cancel_poll_ms / 1000
        self._presence_ttl = settings.presence_ttl_seconds

    async def run(self) -> None:
        """Watch for ever. A Redis error is counted and the next round tries again (open-webui#26779)."""
        next_presence = time.monotonic()
        while True:
            # The same two lines an idle worker runs: no wake-up to forget when the first job comes.
            await asyncio.sleep(self._period)
            if not self.jobs:
                self.last_poll = time.time()
                continue
            self._check_timeouts()
            try:
                await self._check_wishes()
                if time.monotonic() >= next_presence:
                    await self._check_presence()
                    next_presence = time.monotonic() + PRESENCE_PERIOD_SECONDS
                self.last_poll = time.time()
            except (RedisError, OSError) as error:
                self.failures += 1
                # Presence keys expired while Redis was away, and pods need a moment to write them again.
                for job in self.jobs:
                    job.reader_seen_at = time.monotonic()
                log.warning("watch: cannot read cancel keys, failure %d: %s", self.failures, error)

    def _check_timeouts(self) -> None:
        now = time.monotonic()
        for job in list(self.jobs):
            if code := job.overdue(now):
                job.stop(code)

    async def _check_wishes(self) -> None:
        jobs = list(self.jobs)
        keys = [self._keys.cancel(job.id) for job in jobs] + [self._keys.steer(job.id) for job in jobs]
        values = await self._control.mget(keys)
        for job, reason, version in zip(jobs, values, values[len(jobs) :], strict=False):
            if reason is not None:
                job.stop(reason.decode())
            elif version is not None:
                job.steer(int(version))

    async def has_reader(self, job_id: str) -> bool:
        """Whether any pod has a reader of the job's stream."""
        return bool(await self._stream.exists(self._keys.attached(job_id)))

    async def _check_presence(self) -> None:
        jobs = [job for job in self.jobs if job.needs_reader]
        if not jobs:
            return
        async with self._stream.pipeline(transaction=False) as pipe:
            for job in jobs:
                pipe.exists(self._keys.attached(job.id))
            present = await pipe.execute()
        now = time.monotonic()
        for job, attached in zip(jobs, present, strict=True):
            if attached:
                job.reader_seen_at = now
            elif now - job.reader_seen_at > job.grace_seconds + self._presence_ttl:
                job.stop(ABANDONED)
