"""Batches: many jobs that are accepted together, counted together and cancelled together.

Each line is an ordinary job with its own record, log and lease. What is the batch's own is a hash with the counts,
kept by scripts/finish.lua, and the list of its lines.
"""

import secrets
from dataclasses import dataclass, field
from typing import Any

import msgpack

from common import scripts
from common.connections import Client
from common.errors import Conflict, NotFound, TooManyRequests
from common.jobs import Submitted, arq_payload
from common.keys import ARQ_JOB_PREFIX, Keys
from common.records import JobRecord, JobRequest, parse_record, request_fields
from common.settings import Settings

DEADLINE_SECONDS = 86_400.0
"""How long a line may take that does not say so itself: nobody hangs on the line for it."""


def new_batch_id() -> str:
    return "batch_" + secrets.token_hex(16)


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


@dataclass
class Draft:
    """A batch that is being read. Lines are packed one by one, so that no moment has to pack thousands."""

    owner: str
    settings: Settings
    packed: list[Any] = field(default_factory=list)
    lines: int = 0

    def add(self, custom_id: str, request: JobRequest) -> None:
        options, settings = request.options, self.settings
        deadline_ms = int((options.deadline_seconds or DEADLINE_SECONDS) * 1000)
        # Earliest deadline first: a line is in the queue as if it had been submitted at its deadline. So it yields to
        # everything that somebody waits for, and not for ever.
        bonus_ms = int(options.priority * settings.priority_step_seconds * 1000) - deadline_ms
        self.packed += [
            request.id,
            request.model,
            bonus_ms,
            int((options.queue_timeout_seconds or 0) * 1000),
            deadline_ms,
            arq_payload(request.id),
            msgpack.packb([request.id, custom_id]),
            *request_fields(request),
        ]
        self.lines += 1


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

    async def submit(
        self, draft: Draft, *, webhook_url: str | None = None, idempotency_key: str | None = None, fingerprint: str = ""
    ) -> Submitted:
        """Accept all lines of `draft`, or find the batch that `idempotency_key` already named.

        Raises TooManyRequests when the lines do not all fit into their queues, Conflict when the key was used for
        another batch; no line is enqueued then.
        """
        keys, batch_id = self._keys, new_batch_id()
        idem = keys.idempotency(draft.owner, f"batch\0{idempotency_key}")
        reply = await scripts.submit_batch(
            self._client,
            [keys.batch(batch_id), keys.batch_lines(batch_id), keys.deadlines, idem],
            [
                batch_id,
                self._most_waiting,
                fingerprint if idempotency_key else "",
                draft.owner,
                webhook_url or "",
                keys.batch_prefix,
                keys.job_prefix,
                ARQ_JOB_PREFIX,
                keys.queue_prefix,
                keys.wake_prefix,
                len(draft.packed) // draft.lines,
                *draft.packed,
            ],
        )
        verdict = reply[0]
        if verdict == b"full":
            raise TooManyRequests(
                f"{draft.lines} lines do not fit: {int(reply[2])} jobs wait for model {reply[1].decode()!r}, and "
                f"batches may fill its queue up to {self._most_waiting}.",
                retry_after=60,
            )
        if verdict == b"mismatch":
            raise Conflict("This Idempotency-Key was used with a different batch.", code="idempotency_key_reused")
        return Submitted(batch_id if verdict == b"accepted" else reply[1].decode(), verdict == b"accepted")

    async def get(self, batch_id: str) -> Batch | None:
        raw = await self._client.hgetall(self._keys.batch(batch_id))  # type: ignore[misc]
        return _parse(raw) if raw else None

    async def lines(self, batch_id: str, start: int, count: int) -> list[tuple[str, str, JobRecord | None]]:
        """(job id, custom_id, record or None when it was deleted) of `count` lines from `start` on, in their order."""
        key = self._keys.batch_lines(batch_id)
        entries = await self._client.lrange(key, start, start + count - 1)  # type: ignore[misc]
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
        """Nothing that waits starts any more; what runs stops. Raises NotFound, or Conflict when all has ended."""
        keys = self._keys
        found = await scripts.cancel_batch(
            self._client,
            [keys.batch(batch_id), keys.batch_lines(batch_id), keys.deadlines],
            [reason, keys.job_prefix, keys.cancel_prefix],
        )
        if found == b"missing":
            raise batch_not_found(batch_id)
        if found == b"ended":
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
