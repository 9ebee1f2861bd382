"""The life cycle of a job on the control plane. Each method is one Lua script, so no state is read and then written."""

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgpack
from arq.jobs import serialize_job

from common import scripts
from common.connections import Client
from common.errors import Conflict, TooManyRequests
from common.keys import ARQ_JOB_PREFIX, Keys
from common.records import STEER_FIELD, JobRecord, JobRequest, parse_record, request_fields
from common.settings import Settings

ARQ_FUNCTION = "generate"
"""Name under which workers register the job with arq."""

SWEEP_LIMIT = 100
"""Jobs looked at per janitor call: bounds the time Redis spends in one script."""


@dataclass(frozen=True, slots=True)
class Submitted:
    """`record` is the job to attach to; `created` is False when an idempotency key named an earlier job."""

    record: JobRecord
    created: bool

    @property
    def id(self) -> str:
        return self.record.id


@dataclass(frozen=True, slots=True)
class Claim:
    """A job that is the caller's under a lease, as attempt number `attempt`."""

    record: JobRecord
    attempt: int
    arq_payload: bytes | None
    cancel_reason: str | None


@dataclass(frozen=True, slots=True)
class ToEnd:
    """A job that is the caller's under a lease only to be ended; `why` is an error code or a cancel reason."""

    id: str
    attempt: int
    why: str


@dataclass(frozen=True, slots=True)
class Cancelled:
    """What a cancel found: `missing`, `terminal` (with the state), `running`, or `claimed` (with the attempt)."""

    outcome: str
    state: str | None = None
    attempt: int | None = None


class Standing(NamedTuple):
    """Where a job stands. `state` is None when it is gone."""

    state: str | None
    attempt: int
    handed_over: bool
    """Whether its worker gave the last attempt back in order, and did not lose it."""


class JobStore:
    def __init__(self, client: Client, settings: Settings) -> None:
        self._client = client
        self._settings = settings
        self.keys = Keys(settings.namespace)

    async def submit(
        self, request: JobRequest, *, idempotency_key: str | None = None, fingerprint: str = ""
    ) -> Submitted:
        """Accept a job, or return the one that `idempotency_key` already named.

        Raises TooManyRequests when the model's queue is full, Conflict when the key was used for another request.
        """
        settings, options = self._settings, request.options
        idem = self.keys.idempotency(request.owner, idempotency_key) if idempotency_key else self.keys.job(request.id)
        reply = await scripts.submit(
            self._client,
            [
                self.keys.queue(request.model),
                self.keys.job(request.id),
                self.keys.arq_job(request.id),
                self.keys.wake(request.model),
                self.keys.deadlines,
                idem,
            ],
            [
                request.id,
                settings.max_queue_depth,
                int(options.priority * settings.priority_step_seconds * 1000),
                _ms(options.queue_timeout_seconds, settings.queue_timeout_seconds),
                _ms(options.deadline_seconds, settings.total_timeout_seconds),
                arq_payload(request.id),
                fingerprint if idempotency_key else "",
                self.keys.job_prefix,
                *request_fields(request),
            ],
        )
        verdict = reply[0]
        if verdict == b"full":
            raise TooManyRequests(
                f"The queue of model {request.model!r} is full ({int(reply[1])} jobs wait).", retry_after=5
            )
        if verdict == b"mismatch":
            raise Conflict("This Idempotency-Key was used with a different request.", code="idempotency_key_reused")
        raw = dict(zip(reply[2][::2], reply[2][1::2], strict=True))
        record = parse_record(reply[1].decode(), raw)
        # Ours is also found, when the client has repeated the call because the first reply was lost.
        return Submitted(record, created=record.id == request.id)

    async def claim(self, model: str, worker: str, count: int) -> list[Claim]:
        """Up to `count` waiting jobs, in order, now leased to `worker`."""
        reply = await scripts.claim(
            self._client,
            [self.keys.queue(model), self.keys.running(model), self.keys.wake(model), self.keys.deadlines],
            [
                worker,
                count,
                self._settings.lease_ms,
                self.keys.job_prefix,
                ARQ_JOB_PREFIX,
                self.keys.cancel_prefix,
            ],
        )
        return [_parse_claim(item) for item in reply]

    async def renew(self, model: str, worker: str, jobs: Iterable[tuple[str, int, float | None]]) -> list[bool]:
        """Renew (id, attempt, first token time or None) for all of `jobs`; False for each that was lost."""
        flat: list[Any] = []
        for job_id, attempt, first_token_at in jobs:
            flat += [job_id, attempt, int((first_token_at or 0) * 1000)]
        reply = await scripts.renew(
            self._client,
            [self.keys.running(model)],
            [worker, self._settings.lease_ms, self.keys.job_prefix, *flat],
        )
        return [bool(held) for held in reply]

    async def release(self, job_id: str, model: str, worker: str, attempt: int, *, loss: bool = False) -> str:
        """Give a job back to the front of the queue: `released`, `lost`, or `exhausted` when the caller must end it.

        `loss`: count it against the job's `max_attempts` (its engine died); a hand-over at a shutdown does not.
        """
        reply: bytes = await scripts.release(
            self._client,
            [*self._queue_keys(model), self.keys.job(job_id)],
            [job_id, worker, attempt, "1" if loss else "0", self._settings.max_attempts],
        )
        return reply.decode()

    async def requeue_expired(self, model: str, caller: str) -> tuple[int, list[ToEnd]]:
        """Send jobs of lost workers back to the queue; returns how many, and those the caller must end."""
        settings = self._settings
        requeued, to_end = await scripts.requeue_expired(
            self._client,
            [*self._queue_keys(model), self.keys.swept(model)],
            [
                caller,
                settings.lease_ms,
                settings.max_attempts,
                int(settings.retry_backoff_seconds * 1000),
                SWEEP_LIMIT,
                self.keys.job_prefix,
                self.keys.cancel_prefix,
            ],
        )
        return int(requeued), [_parse_to_end(item) for item in to_end]

    async def expire_queued(self, caller: str) -> list[ToEnd]:
        """Jobs whose time in the queue is over; the caller must end them."""
        reply = await scripts.expire_queued(
            self._client,
            [self.keys.deadlines],
            [
                caller,
                self._settings.lease_ms,
                SWEEP_LIMIT,
                self.keys.job_prefix,
                self.keys.queue_prefix,
                self.keys.running_prefix,
                self.keys.cancel_prefix,
            ],
        )
        return [_parse_to_end(item) for item in reply]

    async def cancel(self, job_id: str, reason: str, caller: str, *, forget: bool = False) -> Cancelled:
        """Set the cancel key. `forget`: the record goes as soon as the job has ended."""
        reply = await scripts.cancel(
            self._client,
            [self.keys.job(job_id), self.keys.cancel(job_id), self.keys.deadlines],
            [
                job_id,
                reason,
                caller,
                self._settings.lease_ms,
                self.keys.queue_prefix,
                self.keys.running_prefix,
                "1" if forget else "0",
            ],
        )
        outcome = reply[0].decode()
        if outcome == "claimed":
            return Cancelled(outcome, attempt=int(reply[1]))
        return Cancelled(outcome, state=reply[1].decode() if outcome == "terminal" else None)

    async def steer(self, job_id: str, parameters: dict[str, Any]) -> str:
        """Override generation parameters: `missing`, `queued`, `running`, or the terminal state (nothing changed)."""
        fields: list[Any] = []
        for name, value in parameters.items():
            fields += [STEER_FIELD + name, msgpack.packb(value)]
        reply = await scripts.steer(self._client, [self.keys.job(job_id), self.keys.steer(job_id)], fields)
        found: bytes = reply[0] if reply[0] == b"missing" else reply[1]
        return found.decode()

    async def finish(self, job_id: str, model: str, worker: str, attempt: int, state: str, fields: list[Any]) -> bool:
        """Make the record terminal; False when the job is not the caller's any more. Its log must have ended."""
        return bool(
            await scripts.finish(
                self._client,
                [
                    self.keys.job(job_id),
                    self.keys.running(model),
                    self.keys.arq_job(job_id),
                    self.keys.cancel(job_id),
                    self.keys.deadlines,
                    self.keys.steer(job_id),
                    self.keys.webhooks,
                ],
                [
                    job_id,
                    worker,
                    attempt,
                    state,
                    self._settings.result_ttl_ms,
                    self.keys.webhook_prefix,
                    self.keys.job_prefix,
                    *fields,
                ],
            )
        )

    async def get(self, job_id: str) -> JobRecord | None:
        raw = await self._client.hgetall(self.keys.job(job_id))  # type: ignore[misc]
        return parse_record(job_id, raw) if raw else None

    async def standings(self, job_ids: list[str]) -> list[Standing]:
        """Of many jobs in one round trip."""
        async with self._client.pipeline(transaction=False) as pipe:
            for job_id in job_ids:
                pipe.hmget(self.keys.job(job_id), ["state", "attempt", "handed_over"])
            replies = await pipe.execute()
        return [
            Standing(state.decode(), int(attempt), handed_over == attempt) if state else Standing(None, 0, False)
            for state, attempt, handed_over in replies
        ]

    async def queue_position(self, record: JobRecord) -> int | None:
        """How many jobs are ahead of a waiting one; 0 is next, None when it does not wait."""
        rank: int | None = await self._client.zrank(self.keys.queue(record.model), record.id)
        return rank

    async def delete(self, job_id: str) -> None:
        """Forget a terminal record."""
        await self._client.delete(self.keys.job(job_id))

    def _queue_keys(self, model: str) -> list[str]:
        keys = self.keys
        return [keys.queue(model), keys.running(model), keys.wake(model), keys.deadlines]


def arq_payload(job_id: str) -> bytes:
    """What arq's worker is handed to call the job's function."""
    payload: bytes | None = serialize_job(
        ARQ_FUNCTION, (job_id,), {}, None, int(time.time() * 1000), serializer=msgpack.packb
    )
    assert payload is not None
    return payload


def _ms(per_request: float | None, default: float) -> int:
    return int((default if per_request is None else per_request) * 1000)


def _parse_claim(item: Any) -> Claim:
    job_id, attempt, payload, cancel_reason, flat = item
    record = parse_record(job_id.decode(), dict(zip(flat[::2], flat[1::2], strict=True)))
    return Claim(record, int(attempt), payload, cancel_reason.decode() if cancel_reason else None)


def _parse_to_end(item: Any) -> ToEnd:
    return ToEnd(item[0].decode(), int(item[1]), item[2].decode())
