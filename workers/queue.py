"""arq's worker with another way of taking jobs. It keeps arq's job format, serializer, functions, hooks and health key.

What is replaced, and why (arq 0.28, see docs/architecture.md):

- waking: arq polls every 0.5 s; here an idle worker blocks on the model's wake list and claims at once.
- claiming: arq leaves running ids in the queue and locks each with WATCH; here one script moves them.
- leases: arq's lasts for the longest job timeout and nobody renews it; here all are renewed every second.
- finishing: arq deletes whoever's lock it finds; here only the owner of an attempt can finish a job.
- Redis errors: arq's loop dies of them; here it waits and goes on.
"""

import asyncio
import logging
import signal
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, cast

import msgpack
from arq.jobs import DeserializationError, deserialize_job_raw
from arq.worker import Function, Worker
from redis.exceptions import RedisError

from common.connections import Client
from common.jobs import Claim, JobStore
from workers.running import LOST, RunningJob

log = logging.getLogger(__name__)

WAKE_SECONDS = 1.0
"""Longest time between two looks at the queue, should a wake element be lost."""
RETRY_SECONDS = 0.2
RENEWALS_PER_LEASE = 5


class QueueWorker(Worker):
    """Claims only what it has free slots for; the rest stays in Redis, where it can be cancelled and counted."""

    def __init__(
        self,
        *args: Any,
        store: JobStore,
        wake_client: Client,
        model: str,
        worker_id: str,
        lease_seconds: float,
        running: set[RunningJob],
        engine_serves: Callable[[], bool],
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self._store = store
        self._wake_client = wake_client
        self._model = model
        self._worker_id = worker_id
        self._renew_seconds = lease_seconds / RENEWALS_PER_LEASE
        self._running = running
        self._engine_serves = engine_serves
        self._slot_free = asyncio.Event()

    async def main(self) -> None:
        """Start up, then claim and renew until cancelled. arq cancels this task after its shutdown wait."""
        self.ctx["redis"] = self.pool
        if self.on_startup:
            await self.on_startup(self.ctx)
        renewing = asyncio.create_task(self._renew_forever(), name="renew")
        try:
            while True:
                await self._surviving(self._claim_some)
        finally:
            # Leases hold until the last job is handed back, so this outlives the claiming.
            self.loop.create_task(self._cancel_when_idle(renewing))

    async def _claim_some(self) -> None:
        """One round: fill the free slots, or wait for a job or a slot."""
        free = self.max_jobs - len(self.tasks)
        # A worker whose engine is dead takes a moment to leave; each job claimed meanwhile would count a loss.
        if free <= 0 or not self.allow_pick_jobs or not self._engine_serves():
            self._slot_free.clear()
            await self._slot_free.wait()
            return
        claims = await self._claim(free)
        for claim in claims:
            self._start(claim)
        if len(claims) < free:
            await self.record_health()
            await self._wake_client.blpop([self._store.keys.wake(self._model)], WAKE_SECONDS)  # type: ignore[misc, arg-type]

    async def _claim(self, count: int) -> list[Claim]:
        """Claim; if that is cut short by a shutdown, hand back what it brings."""
        claiming = asyncio.ensure_future(self._store.claim(self._model, self._worker_id, count))
        try:
            return await asyncio.shield(claiming)
        except asyncio.CancelledError:
            for claim in await claiming:
                await self._store.release(claim.record.id, self._model, self._worker_id, claim.attempt)
            raise

    def _start(self, claim: Claim) -> None:
        job_id = claim.record.id
        task = self.loop.create_task(self._run_claim(claim), name=f"job {job_id}")
        # By attempt: a job that was lost and comes back must not push its earlier run out of sight.
        key = f"{job_id}/{claim.attempt}"
        self.tasks[key] = task
        task.add_done_callback(lambda done: self._done(key, done))

    def _done(self, key: str, task: "asyncio.Task[None]") -> None:
        del self.tasks[key]
        self._slot_free.set()
        if not task.cancelled() and (error := task.exception()):
            log.error("job %s: dropped by an error, it goes on when its lease ends", key, exc_info=error)

    async def _run_claim(self, claim: Claim) -> None:
        function, args, kwargs = self._arq_call(claim)
        ctx = {**self.ctx, "job_id": claim.record.id, "job_try": claim.attempt, "claim": claim}
        if self.on_job_start:
            await self.on_job_start(ctx)
        try:
            await function(ctx, *args, **kwargs)
            self.jobs_complete += 1
        except asyncio.CancelledError:
            self.jobs_retried += 1
            raise
        except Exception:
            self.jobs_failed += 1
            raise
        finally:
            if self.on_job_end:
                await self.on_job_end(ctx)

    def _arq_call(self, claim: Claim) -> tuple[Callable[..., Awaitable[Any]], tuple[Any, ...], dict[str, Any]]:
        """The registered function that the job's arq payload names. Raises LookupError when there is none."""
        if claim.arq_payload is None:
            raise LookupError(f"job {claim.record.id} has no arq payload")
        try:
            name, args, kwargs, _, _ = deserialize_job_raw(claim.arq_payload, deserializer=msgpack.unpackb)
        except DeserializationError as error:
            raise LookupError(f"job {claim.record.id} has an unreadable arq payload") from error
        return cast(Function, self.functions[name]).coroutine, args, kwargs

    async def _renew_forever(self) -> None:
        while True:
            await asyncio.sleep(self._renew_seconds)
            await self._surviving(self._renew)

    async def _renew(self) -> None:
        jobs = list(self._running)
        if not jobs:
            return
        leases = [(job.id, job.attempt, job.first_token_at) for job in jobs]
        for job, held in zip(jobs, await self._store.renew(self._model, self._worker_id, leases), strict=True):
            if not held:
                job.stop(LOST)

    async def _surviving(self, step: Callable[[], Awaitable[None]]) -> None:
        """Do one step of a loop; after a Redis error wait a little, so that the loop goes on."""
        try:
            await step()
        except (RedisError, OSError) as error:
            log.warning("queue: %s failed, Redis is away: %s", step.__name__, error)
            await asyncio.sleep(RETRY_SECONDS)

    async def _cancel_when_idle(self, renewing: "asyncio.Task[None]") -> None:
        await asyncio.gather(*self.tasks.values(), return_exceptions=True)
        renewing.cancel()

    def handle_sig_wait_for_completion(self, signum: signal.Signals) -> None:
        """arq's, once: a second signal would cancel jobs that are just being handed back."""
        if self.allow_pick_jobs:
            super().handle_sig_wait_for_completion(signum)

    async def close(self) -> None:
        """As arq's, but it raises neither the jobs' CancelledError nor Redis errors, and always runs `on_shutdown`."""
        await asyncio.gather(*self.tasks.values(), return_exceptions=True)
        with suppress(RedisError, OSError):
            await self.pool.delete(self.health_check_key)
        if self.on_shutdown:
            await self.on_shutdown(self.ctx)
        await self.pool.aclose(close_connection_pool=True)
        await self._wake_client.aclose()
