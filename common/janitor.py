"""Repair that any live process can do: lost leases, waits that are over, cancels of jobs nobody runs.

Every pod and every worker runs one. The scripts hand each job to one caller, so any number may run at once.
"""

import asyncio
import logging
import random

from common.connections import is_outage
from common.ending import Ender
from common.fleet import Fleet
from common.jobs import JobStore, ToEnd

log = logging.getLogger(__name__)

PERIOD_SECONDS = 1.0


class Janitor:
    def __init__(self, jobs: JobStore, fleet: Fleet, ender: Ender) -> None:
        self._jobs = jobs
        self._fleet = fleet
        self._ender = ender

    async def run(self) -> None:
        """Sweep for ever. The period varies, so that many processes do not sweep in step."""
        while True:
            try:
                await self.sweep()
            except Exception as error:
                if not is_outage(error):
                    log.exception("janitor: sweep failed")
            await asyncio.sleep(PERIOD_SECONDS * random.uniform(0.75, 1.25))

    async def sweep(self) -> None:
        caller = self._ender.caller
        to_end: list[ToEnd] = await self._jobs.expire_queued(caller)
        for model in await self._fleet.known_models():
            requeued, overdue = await self._jobs.requeue_expired(model, caller)
            if requeued:
                log.warning("janitor: %d jobs of model %s lost their worker and wait again", requeued, model)
            to_end += overdue
        for job in to_end:
            await self._end(job)

    async def _end(self, job: ToEnd) -> None:
        # One by one: a job that cannot be ended now comes back when its lease is over, and holds up no other.
        try:
            await self._ender.end(job)
        except Exception as error:
            log.warning("job %s: could not be ended (%s): %s", job.id, job.why, error)
