"""Batches: many jobs that are accepted together, counted together and cancelled together.

Each line is an ordinary job with its own record, log and lease. What is the batch's own is a hash with the counts,
kept by scripts/finish.lua, and the list of its lines.
"""

import secrets
from dataclasses import dataclass
from typing import Any

import msgpack

from common import scripts
from common.connections import Client
from common.errors import Conflict, NotFound, TooManyRequests, Unavailable
from common.jobs import arq_payload
from common.keys import ARQ_JOB_PREFIX, Keys
from common.records import JobRecord, JobRequest, parse_record, request_fields
from common.settings import Settings

DEADLINE_SECONDS = 86_400.0
"""How long a line may take that does not say so itself: nobody hangs on the line for it."""
STAGED_SECONDS = 3600
"""How long the upload of a batch may take."""
LINES_PER_WRITE = 50


@dataclass(frozen=True, slots=True)
class SubmittedBatch:
    """`created` is False when an idempotency key named an earlier batch."""

    id: str
    created: bool


@dataclass(frozen=True, slots=True)
class Batch:
    """Times are unix seconds, None while they have not come. `completed` and `failed` (also: cancelled) count lines."""

    id: str
    owner: str
    total: int
    completed: int
    failed: int
    created_at: float
    cancelling_at: float | None
    ended_at: float | None
    expires_at: float | None

    @property
    def status(self) -> str:
        if self.cancelling_at:
            return "cancelled" if self.ended_at else "cancelling"
        return "completed" if self.ended_at else "in_progress"


class Draft:
    """A batch that is being read. Its lines wait in Redis, not here: as records without a state, which nobody sees.

    They vanish by themselves if this process dies before the batch is accepted.
    """

    def __init__(self, client: Client, settings: Settings, owner: str) -> None:
        self.id = "batch_" + secrets.token_hex(16)
        self.owner = owner
        self.places: list[Any] = []
        """For scripts/submit_batch.lua: id, model, priority bonus, queue timeout and deadline of each line."""
        self._client = client
        self._keys = Keys(settings.namespace)
        self._step_ms = settings.priority_step_seconds * 1000
        self._unsent: list[tuple[str, JobRequest]] = []

    def __len__(self) -> int:
        return len(self.places) // 5

    async def add(self, custom_id: str, request: JobRequest) -> None:
        options = request.options
        deadline_ms = int((options.deadline_seconds or DEADLINE_SECONDS) * 1000)
        # Earliest deadline first: a line is in the queue as if it had been submitted at its deadline. So it yields to
        # everything that somebody waits for, and not for ever.
        bonus_ms = int(options.priority * self._step_ms) - deadline_ms
        queue_timeout_ms = int((options.queue_timeout_seconds or 0) * 1000)
        self.places += [request.id, request.model, bonus_ms, queue_timeout_ms, deadline_ms]
        self._unsent.append((custom_id, request))
        if len(self._unsent) >= LINES_PER_WRITE:
            await self.flush()

    async def flush(self) -> None:
        if not self._unsent:
            return
        lines, first = self._keys.batch_lines(self.id), len(self) - len(self._unsent)
        numbers: dict[bytes, int] = {}
        # In one step: a record that has not got its time to live would stay for ever.
        async with self._client.pipeline(transaction=True) as pipe:
            for number, (custom_id, request) in enumerate(self._unsent, first):
                job = self._keys.job(request.id)
                pipe.hset(job, items=request_fields(request))
                pipe.expire(job, STAGED_SECONDS)
                pipe.set(self._keys.arq_job(request.id), arq_payload(request.id), ex=STAGED_SECONDS)
                numbers[msgpack.packb([request.id, custom_id])] = number
            # A sorted set and not a list: the client repeats what it got no reply for.
            pipe.zadd(lines, numbers)
            pipe.expire(lines, STAGED_SECONDS)
            await pipe.execute()
        self._unsent.clear()

    async def discard(self) -> None:
        """Forget the lines, if the batch was not accepted. If it was, and only nobody heard of it, nothing happens."""
        keys = [self._keys.batch(self.id), self._keys.batch_lines(self.id)]
        await scripts.discard_batch(self._client, keys, [self._keys.job_prefix, ARQ_JOB_PREFIX])


class BatchStore:
    def __init__(self, client: Client, settings: Settings) -> None:
        self._client = client
        self._settings = settings
        self._keys = Keys(settings.namespace)

    @property
    def most_lines(self) -> int:
        return min(self._settings.batch_max_lines, self._most_waiting)

    @property
    def _most_waiting(self) -> int:
        """Batches may fill half of a queue: the other half is for those who wait for their answer."""
        return self._settings.max_queue_depth // 2

    def draft(self, owner: str) -> Draft:
        return Draft(self._client, self._settings, owner)

    async def submit(
        self, draft: Draft, *, webhook_url: str | None = None, idempotency_key: str | None = None, fingerprint: str = ""
    ) -> SubmittedBatch:
        """Accept all lines of `draft`, or find the batch that `idempotency_key` already named.

        Raises TooManyRequests when the lines do not all fit into their queues, Conflict when the key was used for
        another batch. Unless the batch was created, the caller must discard the draft.
        """
        keys = self._keys
        await draft.flush()
        idem = keys.idempotency(draft.owner, f"batch\0{idempotency_key}")
        reply = await scripts.submit_batch(
            self._client,
            [keys.batch(draft.id), keys.batch_lines(draft.id), keys.deadlines, idem],
            [
                draft.id,
                self._most_waiting,
                fingerprint if idempotency_key else "",
                draft.owner,
                webhook_url or "",
                keys.batch_prefix,
                keys.job_prefix,
                ARQ_JOB_PREFIX,
                keys.queue_prefix,
                keys.wake_prefix,
                *draft.places,
            ],
        )
        verdict = reply[0]
        if verdict == b"full":
            raise TooManyRequests(
                f"{len(draft)} lines do not fit: {int(reply[1])} jobs wait for model {reply[2].decode()!r}, and "
                f"batches may fill its queue up to {self._most_waiting}.",
                retry_after=60,
            )
        if verdict == b"lost":
            raise Unavailable("A part of the batch was lost while it was uploaded; send it again.", retry_after=1)
        if verdict == b"mismatch":
            raise Conflict("This Idempotency-Key was used with a different batch.", code="idempotency_key_reused")
        batch_id = draft.id if verdict == b"accepted" else reply[1].decode()
        return SubmittedBatch(batch_id, created=batch_id == draft.id)

    async def get(self, batch_id: str) -> Batch | None:
        raw = await self._client.hgetall(self._keys.batch(batch_id))  # type: ignore[misc]
        return _parse(raw) if raw else None

    async def lines(self, batch_id: str, start: int, count: int) -> list[tuple[str, str, JobRecord | None]]:
        """(job id, custom_id, record or None when it was deleted) of `count` lines from `start` on, in their order."""
        key = self._keys.batch_lines(batch_id)
        entries = await self._client.zrange(key, start, start + count - 1)
        named = [msgpack.unpackb(entry) for entry in entries]
        async with self._client.pipeline(transaction=False) as pipe:
            for job_id, _ in named:
                pipe.hgetall(self._keys.job(job_id))
            records = await pipe.execute() if named else []
        return [
            (job_id, custom_id, parse_record(job_id, raw) if raw else None)
            for (job_id, custom_id), raw in zip(named, records, strict=True)
        ]

    async def cancel(self, batch_id: str, reason: str) -> None:
        """Nothing that waits starts any more; what runs stops. Raises NotFound, or Conflict for a completed one."""
        keys = self._keys
        found = await scripts.cancel_batch(
            self._client,
            [keys.batch(batch_id), keys.batch_lines(batch_id), keys.deadlines],
            [reason, keys.job_prefix, keys.cancel_prefix],
        )
        if found == b"missing":
            raise batch_not_found(batch_id)
        if found == b"completed":
            raise Conflict("The batch has already ended.", code="batch_already_ended")


def batch_not_found(batch_id: str) -> NotFound:
    return NotFound(f"No batch with id {batch_id!r}.", code="batch_not_found", param="id")


def _parse(raw: dict[bytes, bytes]) -> Batch:
    def seconds(name: bytes) -> float | None:
        return int(raw[name]) / 1000 if name in raw else None

    return Batch(
        id=raw[b"id"].decode(),
        owner=raw[b"owner"].decode(),
        total=int(raw[b"total"]),
        completed=int(raw[b"completed"]),
        failed=int(raw[b"failed"]),
        created_at=int(raw[b"created_ms"]) / 1000,
        cancelling_at=seconds(b"cancelling_ms"),
        ended_at=seconds(b"ended_ms"),
        expires_at=seconds(b"expires_ms"),
    )
