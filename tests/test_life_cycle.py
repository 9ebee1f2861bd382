"""A model check of the job life cycle: fake workers, pods and janitors do anything in any order, on a real Redis.

Hypothesis drives the real scripts. Crashes are modelled by forgetting: whoever crashes never acts on its claim again.
"""

import asyncio
import contextlib
import secrets
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)
from redis.exceptions import ResponseError

from common import events
from common.connections import command_client
from common.ending import Ender, ending
from common.eventlog import AlreadyEnded, EventLog, Fenced
from common.events import EventId
from common.jobs import JobStore, ToEnd
from common.records import JobRequest, Options, new_job_id, result_fields
from common.settings import Settings
from tests.support.processes import RedisServer

MODEL = "m"
WORKERS = ("w1", "w2", "w3")


@dataclass(eq=False)
class Held:
    """What one worker believes: that it runs this attempt, and where its next entry goes."""

    worker: str
    job_id: str
    attempt: int
    seq: int = 0

    @property
    def owner(self) -> tuple[str, str, int]:
        return self.job_id, self.worker, self.attempt


class LifeCycle(RuleBasedStateMachine):
    redis_url: str

    jobs = Bundle("jobs")
    claims = Bundle("claims")
    running = Bundle("running")
    to_end = Bundle("to_end")

    def __init__(self) -> None:
        super().__init__()
        self._loop = asyncio.new_event_loop()
        config = Settings(redis_url=self.redis_url, namespace=f"m{secrets.token_hex(4)}", retry_backoff_seconds=0)
        self._redis = command_client(self.redis_url)
        self._store = JobStore(self._redis, config)
        self._log = EventLog(self._redis, self._store.keys)
        self._config = config
        self._ids: list[str] = []

    def teardown(self) -> None:
        try:
            self.run(self._everything_ends())
        finally:
            self.run(self._redis.aclose())
            self._loop.close()

    def run(self, work: Any) -> Any:
        return self._loop.run_until_complete(work)

    @rule(target=jobs, priority=st.integers(-2, 2))
    def submit(self, priority: int) -> str:
        request = JobRequest(new_job_id("job"), "chat", MODEL, "o", {"messages": []}, Options(priority=priority))
        self._ids.append(request.id)
        self.run(self._store.submit(request))
        return request.id

    @rule(target=claims, worker=st.sampled_from(WORKERS), count=st.integers(1, 3))
    def claim(self, worker: str, count: int) -> Any:
        claimed = self.run(self._store.claim(MODEL, worker, count))
        return multiple(*(Held(worker, claim.record.id, claim.attempt) for claim in claimed))

    @rule(target=running, held=consumes(claims))
    def begin(self, held: Held) -> Any:
        try:
            first = events.started(held.attempt, held.worker)
            held.seq = self.run(self._log.append_attempt(held.job_id, held.attempt, first)).seq
        except Fenced:
            return multiple()
        except AlreadyEnded:
            self.run(self._ender(held.worker).finish_from_log(held.job_id, held.attempt))
            return multiple()
        return held

    @rule(held=running)
    def write(self, held: Held) -> None:
        self._append(held, events.delta(content="x"))

    @rule(held=consumes(running), crash=st.booleans(), status=st.sampled_from(["completed", "failed"]))
    def end(self, held: Held, crash: bool, status: str) -> None:
        if self._append(held, events.end(status)) and not crash:
            fields = result_fields({"choices": []}, {})
            self.run(self._store.finish(held.job_id, MODEL, held.worker, held.attempt, status, fields))

    @rule(held=running)
    def renew(self, held: Held) -> None:
        self.run(self._store.renew(MODEL, held.worker, [(held.job_id, held.attempt, None)]))

    @rule(held=consumes(running), loss=st.booleans())
    def release(self, held: Held, loss: bool) -> None:
        """Drain, or the death of the engine; `exhausted` is left to the lease, as if the worker had crashed."""
        self.run(self._store.release(held.job_id, MODEL, held.worker, held.attempt, loss=loss))

    @rule(job_id=jobs)
    def lease_expires(self, job_id: str) -> None:
        self.run(self._expire(job_id))

    @rule(target=to_end)
    def sweep(self) -> Any:
        return multiple(*self.run(self._sweep()))

    @rule(target=to_end, job_id=jobs)
    def waits_too_long(self, job_id: str) -> Any:
        self.run(self._redis.zadd(self._store.keys.deadlines, {job_id: 1}, xx=True))
        return multiple(*self.run(self._store.expire_queued("janitor")))

    @rule(target=to_end, job_id=jobs)
    def cancel(self, job_id: str) -> Any:
        found = self.run(self._store.cancel(job_id, "why", "janitor"))
        if found.outcome == "claimed":
            return ToEnd(job_id, found.attempt or 0, "why")
        return multiple()

    @rule(job=consumes(to_end), crash=st.booleans())
    def end_unowned(self, job: ToEnd, crash: bool) -> None:
        """By pod or janitor; a crash leaves the end in the log and the record behind."""
        if not crash:
            self.run(self._ender("janitor").end(job))
            return
        with contextlib.suppress(Fenced, AlreadyEnded):
            self.run(self._log.append_attempt(job.id, job.attempt, ending(job.why)))

    @invariant()
    def every_log_is_whole(self) -> None:
        """Invariants 1, 2 and 6: no hole, no second end, nothing after the end, attempts only go up."""
        for job_id in self._ids:
            log = self.run(self._log.read_all(job_id))
            assert [id.seq for id, _ in log] == list(range(1, len(log) + 1))
            attempts = [id.attempt for id, _ in log]
            assert attempts == sorted(attempts)
            assert all(event["type"] != "end" for _, event in log[:-1])

    @invariant()
    def every_job_is_in_one_place(self) -> None:
        """A waiting job waits, a running one has a lease, an ended one is nowhere; and its log has ended (7)."""
        keys = self._store.keys
        for job_id in self._ids:
            record = self.run(self._store.get(job_id))
            assert record is not None
            queued = self.run(self._redis.zscore(keys.queue(MODEL), job_id)) is not None
            leased = self.run(self._redis.zscore(keys.running(MODEL), job_id)) is not None
            if record.terminal:
                assert not queued
                assert not leased
                last = self.run(self._log.last(job_id))
                assert last is not None
                assert (last["type"], last["status"]) == ("end", record.state)
            else:
                assert queued != leased
                assert leased or record.state == "queued"

    def _append(self, held: Held, event: events.Event) -> bool:
        """As the writer does: the next id, into an existing stream only. False when Redis refuses it."""
        try:
            id = EventId(held.attempt, held.seq + 1)
            entry: dict[Any, Any] = {"e": events.encode(event)}
            self.run(self._redis.xadd(self._store.keys.stream(held.job_id), entry, id=str(id), nomkstream=True))
        except ResponseError:
            return False
        held.seq += 1
        return True

    def _ender(self, caller: str) -> Ender:
        return Ender(self._store, self._log, self._config, caller)

    async def _expire(self, job_id: str) -> None:
        await self._redis.zadd(self._store.keys.running(MODEL), {job_id: 1}, xx=True)

    async def _sweep(self) -> list[ToEnd]:
        # As if somebody had swept a moment ago: no grace for owners.
        now_ms = int((await self._redis.time())[0]) * 1000
        await self._redis.hset(self._store.keys.swept(MODEL), mapping={"last": now_ms, "grace": 0})  # type: ignore[misc]
        return (await self._store.requeue_expired(MODEL, "janitor"))[1]

    async def _everything_ends(self) -> None:
        """Invariant 1: with one worker and one janitor alive, every job reaches its end, whatever happened before."""
        for _ in range(30):
            for job_id in self._ids:
                await self._expire(job_id)
            for job in await self._sweep():
                await self._ender("janitor").end(job)
            for claim in await self._store.claim(MODEL, "last", 100):
                job = ToEnd(claim.record.id, claim.attempt, claim.cancel_reason or "worker_lost")
                await self._ender("last").end(job)
        for job_id in self._ids:
            record = await self._store.get(job_id)
            assert record is not None
            assert record.terminal, f"{job_id} is still {record.state}"


@pytest.mark.slow
def test_the_life_cycle_of_jobs(redis_server: RedisServer) -> None:
    LifeCycle.redis_url = redis_server.url
    run_state_machine_as_test(
        LifeCycle,
        settings=settings(
            max_examples=60,
            stateful_step_count=40,
            suppress_health_check=list(HealthCheck),
            derandomize=True,
        ),
    )
