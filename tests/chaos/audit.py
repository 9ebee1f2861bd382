"""The invariants of the design, checked in Redis itself over every job that anybody submitted."""

import time
from collections import defaultdict
from typing import Any

from common import events
from common.connections import Client
from common.eventlog import parse_entry
from common.events import DELTA, END, STARTED, Event, EventId
from common.keys import ARQ_JOB_PREFIX, Keys
from common.records import JobRecord, parse_record
from tests.chaos.ledger import Ledger, LogFacts
from tests.chaos.listener import DONE, Listener
from tests.chaos.plan import Plan, number_of, plan
from tests.support.client import MODEL

Log = list[tuple[EventId, Event]]

SETTLED_SECONDS = 6.0
"""More than any process is ever stopped, or its link held."""


class AuditTooLate(Exception):
    """Jobs have expired before they were looked at: the run says nothing."""


class Audit:
    """`sweep` now and then while jobs come and go, `sweep(final=True)` when all must have ended.

    A job is looked at twice: as soon as its record is terminal (then its log must have ended already), and some time
    later, when a worker that was stopped meanwhile has had its chance to write something more.
    """

    def __init__(self, redis: Client, keys: Keys, ledger: Ledger, maxlen: int, ttl_seconds: float) -> None:
        self._redis = redis
        self._keys = keys
        self._ledger = ledger
        self._maxlen = maxlen
        self._ttl = ttl_seconds
        self._ended_at: dict[str, float] = {}
        self._forgotten: set[str] = set()
        self._swept_at = time.monotonic()
        self._seen_at: dict[str, float] = {}

    async def sweep(self, *, final: bool = False) -> list[str]:
        """Returns the ids of jobs that have not ended."""
        await self._learn()
        now = time.monotonic()
        due = [
            job_id
            for job_id in self._ledger.plans
            if job_id not in self._ledger.audited
            and job_id not in self._forgotten
            and (final or now - self._ended_at.get(job_id, 0) > SETTLED_SECONDS)
        ]
        records = await self._records(due)  # before the logs: an end must be there when the record says so
        living = [job_id for job_id, record in records.items() if record and not record.terminal]
        logs = await self._logs([job_id for job_id in due if job_id not in set(living)])
        for job_id, log in logs.items():
            self._in_time(job_id, records[job_id], log, now)
            self._look(job_id, records[job_id], log, final=final)
        self._seen_at.update(dict.fromkeys(due, now))
        self._swept_at = now
        return living

    def _in_time(self, job_id: str, record: JobRecord | None, log: Log, now: float) -> None:
        """Raises AuditTooLate when what is not there may simply have expired since it was seen."""
        unseen = now - self._seen_at.get(job_id, self._swept_at)
        # A log's time begins a little before its record's: as long as the end waits for Redis to take the record.
        log_age = time.time() - record.finished_at if record and record.finished_at else unseen
        if (record is None and unseen > self._ttl) or (not log and log_age > self._ttl / 2):
            raise AuditTooLate(f"{self._about(job_id)}: not seen for {unseen:.0f} s; this machine is too busy")

    async def _learn(self) -> None:
        """A job whose submit's answer was lost is known from Redis alone, by its prompt."""
        keys = [key.decode() async for key in self._redis.scan_iter(f"{self._keys.job_prefix}*", count=1000)]
        ids = [key.removeprefix(self._keys.job_prefix) for key in keys]
        for job_id, record in (await self._records([id for id in ids if id not in self._ledger.plans])).items():
            if record:
                prompt = record.body["messages"][0]["content"]
                self._ledger.plans[job_id] = plan(self._ledger.seed, number_of(prompt))

    async def _records(self, ids: list[str]) -> dict[str, JobRecord | None]:
        async with self._redis.pipeline(transaction=False) as pipe:
            for job_id in ids:
                pipe.hgetall(self._keys.job(job_id))
            raw = await pipe.execute()
        return {id: parse_record(id, fields) if fields else None for id, fields in zip(ids, raw, strict=True)}

    async def _logs(self, ids: list[str]) -> dict[str, Log]:
        async with self._redis.pipeline(transaction=False) as pipe:
            for job_id in ids:
                pipe.xrange(self._keys.stream(job_id), "-", "+")
            raw = await pipe.execute()
        return {
            id: [(at, events.decode(data)) for at, data in map(parse_entry, entries)]
            for id, entries in zip(ids, raw, strict=True)
        }

    def _look(self, job_id: str, record: JobRecord | None, log: Log, *, final: bool) -> None:
        """At a job that has ended; for the second time, if it is time."""
        ended = bool(log) and log[-1][1]["type"] == END
        if record is None and self._ledger.plans[job_id].fate != "delete":
            self._ledger.find("lost", f"{self._about(job_id)}: its record is gone")
        elif record is None and log and not ended:
            self._ledger.find("hung", f"{self._about(job_id)}: deleted, and its log has no end")
        elif record and not ended:
            self._ledger.find("lost", f"{self._about(job_id)}: {record.state}, but its log has no end (invariant 7)")
        if not ended:
            self._forgotten.add(job_id)
            return
        now = time.monotonic()
        if final or now - self._ended_at.setdefault(job_id, now) > SETTLED_SECONDS:
            self._ledger.audited[job_id] = self._check_log(job_id, log)
            if record:
                self._check_record(record, self._ledger.audited[job_id])

    def _about(self, job_id: str) -> str:
        return f"log of {job_id} (n={self._ledger.plans[job_id].n})"

    def _check_log(self, job_id: str, log: Log) -> LogFacts:
        about, find = self._about(job_id), self._ledger.find
        expected = self._ledger.plans[job_id].expected
        if len(log) > self._maxlen:
            find("leaked", f"{about}: {len(log)} entries, more than its bound (invariant 3)")
        ends = [str(id) for id, event in log if event["type"] == END]
        if len(ends) > 1:
            find("doubled", f"{about}: ends at {ends} (invariant 1)")
        if log[-1][1]["type"] != END:
            find("doubled", f"{about}: goes on after its end (invariant 1)")
        said, starts, mid_answer, before = 0, 0, 0, EventId(0, 0)
        text: list[str] = []
        for id, event in log:
            if id.seq != before.seq + 1 or id.attempt < before.attempt:
                find("lost" if id.seq > before.seq + 1 else "reordered", f"{about}: {id} after {before} (invariant 6)")
            first = id.attempt != before.attempt
            # Whoever takes a job only to end it writes nothing but the end.
            if first != (event["type"] == STARTED) and not (first and event["type"] == END):
                find("reordered", f"{about}: {event['type']} at {id} after {before} (invariant 6)")
            if event["type"] == STARTED:
                starts += 1
                mid_answer += said > 0
                if event["attempt"] != id.attempt:
                    find("reordered", f"{about}: attempt {event['attempt']} says it started at {id}")
            elif event["type"] == DELTA:
                said += len(event.get("token_ids") or ())
                text.append(event.get("content") or "")
            before = id
        if "".join(text) != "".join(expected[:said]):
            find("lost", f"{about}: its {said} tokens are not the answer's (invariant 2): {''.join(text)!r}")
        status = log[-1][1].get("status", "none")
        return LogFacts(len(expected), status, starts, mid_answer, said)

    def _check_record(self, record: JobRecord, facts: LogFacts) -> None:
        about = f"record of {record.id} (n={self._ledger.plans[record.id].n})"
        if record.state != facts.status:
            self._ledger.find("lost", f"{about}: {record.state}, its log {facts.status} (invariant 1)")
        choices = (record.result or {}).get("choices") or [{"content": ""}]
        expected = self._ledger.plans[record.id].expected
        if choices[0]["content"] != "".join(expected[: facts.said]):
            self._ledger.find("lost", f"{about}: not what its log says (invariant 2): {choices[0]['content']!r}")
        used = (record.usage or {}).get("completion_tokens", facts.said)
        if used != facts.said:
            self._ledger.find("lost", f"{about}: counts {used} tokens, its log has {facts.said}")

    def conclude(self, listeners: list[Listener]) -> None:
        """What needs all jobs and all readers at once."""
        ledger = self._ledger
        for job_id, job_plan in ledger.plans.items():
            facts = ledger.audited.get(job_id)
            if facts is None or not job_plan.must_finish:
                continue
            if facts.status not in ("completed", "incomplete") or facts.said != facts.tokens:
                less = max(1, facts.tokens - facts.said)
                ledger.find("lost", f"{self._about(job_id)}: {facts.status} with {facts.said} tokens", less)
        for listener in listeners:
            self._conclude_listener(listener)
        self._check_keys(ledger.plans)

    def _conclude_listener(self, listener: Listener) -> None:
        if listener.missing:
            missing = sorted(listener.missing)
            self._ledger.find("lost", f"{listener.name}: never heard tokens {missing}", len(missing))
        facts = self._ledger.audited.get(listener.job_id)
        if facts is None or listener.status is None:
            return
        if listener.next != facts.said:
            less = max(1, facts.said - listener.next)
            self._ledger.find("lost", f"{listener.name}: ended after {listener.next} of {facts.said} tokens", less)
        fine = ("completed", "incomplete") if listener.status == DONE else (listener.status,)
        if facts.status not in fine:
            self._ledger.find("lost", f"{listener.name}: heard {listener.status}, the log has {facts.status}")

    def _check_keys(self, plans: dict[str, Plan]) -> None:
        """An idempotency key names one job, however often it was submitted."""
        by_number = defaultdict(set)
        for job_id, job_plan in plans.items():
            by_number[job_plan.n].add(job_id)
        for n, ids in by_number.items():
            if len(ids) > 1 and plans[next(iter(ids))].keyed:
                self._ledger.find("doubled", f"n={n} was submitted with a key and became {sorted(ids)}")

    async def leaked_keys(self) -> list[str]:
        """Keys that should not be there once every job has ended and expired. Those that live on are no job's."""
        fine = {
            self._keys.models,
            self._keys.workers,
            self._keys.swept(MODEL),
            self._keys.wake(MODEL),
            f"{self._keys.queue(MODEL)}:health-check",
        }
        names: list[Any] = [key.decode() async for key in self._redis.scan_iter("*", count=1000)]
        beats = self._keys.worker("")
        return sorted(name for name in names if name not in fine and not name.startswith(beats))

    async def unfinished_business(self) -> list[str]:
        """Keys that belong to jobs that wait or run, when none does any more."""
        mine = (self._keys.cancel_prefix, ARQ_JOB_PREFIX, self._keys.deadlines, self._keys.running(MODEL))
        return [name for name in await self.leaked_keys() if name.startswith(mine) or name == self._keys.queue(MODEL)]
