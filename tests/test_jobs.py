"""The life cycle of jobs on the control plane: every script, on a real Redis."""

import asyncio
from typing import Any

import pytest
from redis.asyncio import Redis

from common.ending import Ender
from common.errors import Conflict, TooManyRequests
from common.eventlog import EventLog
from common.jobs import JobStore, ToEnd
from common.records import JobRequest, Options, new_job_id, result_fields
from common.settings import Settings
from tests.support.wait import until

MODEL = "m"


def request(owner: str = "alice", **options: Any) -> JobRequest:
    return JobRequest(new_job_id("job"), "chat", MODEL, owner, {"messages": []}, Options(**options))


async def submitted(store: JobStore, **options: Any) -> str:
    return (await store.submit(request(**options))).id


async def finish(store: JobStore, job_id: str, worker: str, attempt: int, state: str = "completed") -> bool:
    return await store.finish(job_id, MODEL, worker, attempt, state, result_fields({"choices": []}, {}))


@pytest.fixture
def store(control: Redis, settings: Settings) -> JobStore:
    return JobStore(control, settings)


@pytest.fixture
def brief(control: Redis, settings: Settings) -> JobStore:
    """A store whose leases run out at once."""
    short = settings.model_copy(update={"lease_seconds": 0.001, "retry_backoff_seconds": 0.05})
    return JobStore(control, short)


async def test_jobs_run_in_order_of_submission_and_priority(store: JobStore) -> None:
    first, second = await submitted(store), await submitted(store)
    urgent = await submitted(store, priority=10)
    patient = await submitted(store, priority=-10)
    claims = await store.claim(MODEL, "w", 10)
    assert [claim.record.id for claim in claims] == [urgent, first, second, patient]


async def test_a_claim_takes_no_more_than_asked_and_brings_the_request(store: JobStore) -> None:
    ids = [await submitted(store) for _ in range(3)]
    claims = await store.claim(MODEL, "w", 2)
    assert [claim.record.id for claim in claims] == ids[:2]
    assert claims[0].record.body == {"messages": []}
    assert claims[0].attempt == 1
    assert claims[0].record.state == "running"
    assert await store.queue_position(claims[0].record) is None
    waiting = await store.get(ids[2])
    assert waiting is not None
    assert await store.queue_position(waiting) == 0


async def test_a_job_is_claimed_by_one_worker_only(store: JobStore) -> None:
    ids = {await submitted(store) for _ in range(50)}
    claims = await asyncio.gather(*(store.claim(MODEL, f"w{i}", 7) for i in range(10)))
    claimed = [claim.record.id for batch in claims for claim in batch]
    assert sorted(claimed) == sorted(ids)


async def test_running_jobs_elsewhere_do_not_hide_a_new_one(store: JobStore, redis: Redis) -> None:
    """arq#170: running ids stay in arq's queue, and a free worker cannot see past a window of them."""
    for _ in range(1000):
        await submitted(store)
    for _ in range(10):
        await store.claim(MODEL, "busy", 100)
    fresh = await submitted(store)
    assert await redis.zcard(store.keys.queue(MODEL)) == 1
    claims = await store.claim(MODEL, "idle", 5)
    assert [claim.record.id for claim in claims] == [fresh]


async def test_a_full_queue_refuses_and_stores_nothing(settings: Settings, control: Redis, redis: Redis) -> None:
    store = JobStore(control, settings.model_copy(update={"max_queue_depth": 2}))
    await submitted(store)
    await submitted(store)
    refused = request()
    with pytest.raises(TooManyRequests) as caught:
        await store.submit(refused)
    assert caught.value.retry_after
    assert await store.get(refused.id) is None
    assert not await redis.exists(store.keys.arq_job(refused.id))


async def test_an_idempotent_repeat_attaches_to_the_first_job(store: JobStore) -> None:
    """LibreChat#14059: ids are never reused; a repeat finds the first job instead."""
    first = await store.submit(request(), idempotency_key="k", fingerprint="f")
    repeat = await store.submit(request(), idempotency_key="k", fingerprint="f")
    assert first.created
    assert not repeat.created
    assert repeat.id == first.id
    with pytest.raises(Conflict, match="different request"):
        await store.submit(request(), idempotency_key="k", fingerprint="other")
    stranger = await store.submit(request(owner="bob"), idempotency_key="k", fingerprint="f")
    assert stranger.created


async def test_a_submit_whose_reply_was_lost_can_be_repeated(store: JobStore, redis: Redis) -> None:
    same = request()
    await store.submit(same)
    repeat = await store.submit(same)
    assert (repeat.id, repeat.created) == (same.id, True)
    assert await redis.zcard(store.keys.queue(MODEL)) == 1


async def test_only_the_owner_renews_and_finishes(store: JobStore) -> None:
    """Invariant 6: ownership is worker and attempt, not just the id."""
    job_id = await submitted(store)
    await store.claim(MODEL, "w1", 1)
    assert await store.renew(MODEL, "w1", [(job_id, 1, None)]) == [True]
    assert await store.renew(MODEL, "w2", [(job_id, 1, None)]) == [False]
    assert await store.renew(MODEL, "w1", [(job_id, 2, None)]) == [False]
    assert not await finish(store, job_id, "w2", 1)
    assert not await finish(store, job_id, "w1", 2)
    assert await finish(store, job_id, "w1", 1)
    assert await finish(store, job_id, "w1", 1), "a repeat whose reply was lost is fine"
    assert not await finish(store, job_id, "w2", 1, "failed")
    record = await store.get(job_id)
    assert record is not None
    assert record.state == "completed"


async def test_a_lost_worker_costs_a_lease_not_a_job_timeout(brief: JobStore) -> None:
    """arq#343, arq#402: the next attempt starts when the lease is over, whatever limits any job has."""
    job_id = await submitted(brief)
    await brief.claim(MODEL, "dead", 1)
    await until(lambda: _requeued(brief), "the job waits again")
    claims = await brief.claim(MODEL, "alive", 1)
    assert [(claim.record.id, claim.attempt) for claim in claims] == [(job_id, 2)]
    assert await brief.renew(MODEL, "dead", [(job_id, 1, None)]) == [False]
    assert not await finish(brief, job_id, "dead", 1)


async def test_a_lost_job_comes_before_those_submitted_later(brief: JobStore) -> None:
    lost = await submitted(brief)
    await brief.claim(MODEL, "dead", 1)
    later = await submitted(brief)
    await until(lambda: _requeued(brief), "the job waits again")
    assert [claim.record.id for claim in await brief.claim(MODEL, "w", 2)] == [lost, later]


async def test_a_job_that_kills_its_workers_is_given_up(brief: JobStore, settings: Settings, redis: Redis) -> None:
    """llm-d-async#391: backoff, a retry budget, and an end."""
    job_id = await submitted(brief)
    for loss in range(1, settings.max_attempts):
        claims = await until(lambda: brief.claim(MODEL, "victim", 1), f"claim {loss}")
        assert claims[0].attempt == loss
        await until(lambda: _lost(brief, job_id), "the loss is noticed")
        if loss > 1:
            assert await redis.zcard(brief.keys.queue(MODEL)) == 0, "it waits out a backoff first"
        await until(lambda: _requeued_or_waiting(brief, redis), "it waits again")
    await brief.claim(MODEL, "victim", 1)
    to_end = await until(lambda: _to_end(brief), "it is handed over to be ended")
    assert [(job.id, job.attempt, job.why) for job in to_end] == [(job_id, settings.max_attempts + 1, "worker_lost")]
    assert await finish(brief, job_id, "janitor", settings.max_attempts + 1, "failed")


async def test_handing_back_does_not_use_the_retry_budget(store: JobStore) -> None:
    job_id = await submitted(store)
    for attempt in range(1, 10):
        await store.claim(MODEL, "w", 1)
        assert await store.release(job_id, MODEL, "w", attempt) == "released"
    assert await store.release(job_id, MODEL, "w", 9) == "lost"
    record = await store.get(job_id)
    assert record is not None
    assert record.losses == 0


async def test_an_engine_death_counts_as_a_loss(store: JobStore, settings: Settings) -> None:
    job_id = await submitted(store)
    for attempt in range(1, settings.max_attempts):
        await store.claim(MODEL, "w", 1)
        assert await store.release(job_id, MODEL, "w", attempt, loss=True) == "released"
    await store.claim(MODEL, "w", 1)
    assert await store.release(job_id, MODEL, "w", settings.max_attempts, loss=True) == "exhausted"
    assert await finish(store, job_id, "w", settings.max_attempts, "failed"), "it is still ours, to be ended"


async def test_cancel_finds_a_job_in_every_state(store: JobStore, redis: Redis) -> None:
    waiting = await submitted(store)
    found = await store.cancel(waiting, "why", "pod")
    assert (found.outcome, found.attempt) == ("claimed", 1)
    assert await store.claim(MODEL, "w", 1) == [], "a cancelled job never starts"
    assert await finish(store, waiting, "pod", 1, "cancelled")

    running = await submitted(store)
    await store.claim(MODEL, "w", 1)
    assert (await store.cancel(running, "why", "pod")).outcome == "running"
    assert (await store.cancel(running, "again", "pod")).outcome == "running"
    assert await redis.get(store.keys.cancel(running)) == b"why", "the first reason stays"
    assert await finish(store, running, "w", 1, "cancelled")
    assert not await redis.exists(store.keys.cancel(running))

    found = await store.cancel(running, "late", "pod")
    assert (found.outcome, found.state) == ("terminal", "cancelled")
    assert not await redis.exists(store.keys.cancel(running))


async def test_cancelling_an_unknown_id_leaves_nothing_behind(store: JobStore, redis: Redis) -> None:
    """arq#485: the abort of an id that does not exist kills a later job with that id."""
    assert (await store.cancel("job-none", "why", "pod")).outcome == "missing"
    assert not [key async for key in redis.scan_iter(f"{store.keys.namespace}:*")]


async def test_a_canceller_that_dies_is_replaced(brief: JobStore) -> None:
    """The pod that claimed a waiting job to end it dies: whoever sweeps next gets the job with its reason."""
    job_id = await submitted(brief)
    await brief.cancel(job_id, "why", "dead-pod")
    to_end = await until(lambda: _to_end(brief), "it is handed over to be ended")
    assert [(job.id, job.attempt, job.why) for job in to_end] == [(job_id, 2, "why")]


async def test_a_claim_tells_of_a_cancel(store: JobStore, redis: Redis) -> None:
    job_id = await submitted(store)
    await redis.set(store.keys.cancel(job_id), "why")
    assert (await store.claim(MODEL, "w", 1))[0].cancel_reason == "why"


async def test_a_job_that_waits_too_long_is_taken_out(store: JobStore, redis: Redis) -> None:
    impatient = await submitted(store, queue_timeout_seconds=0.01)
    hurried = await submitted(store, deadline_seconds=0.01)
    patient = await submitted(store)
    found: dict[str, str] = {}

    async def both_expired() -> bool:
        found.update({job.id: job.why for job in await store.expire_queued("pod")})
        return len(found) == 2

    await until(both_expired, "both are taken out")
    assert found == {impatient: "queue_timeout", hurried: "deadline_exceeded"}
    assert [claim.record.id for claim in await store.claim(MODEL, "w", 5)] == [patient]


async def test_only_ended_jobs_expire(store: JobStore, redis: Redis) -> None:
    job_id = await submitted(store)
    key = store.keys.job(job_id)
    assert await redis.pttl(key) == -1
    await store.claim(MODEL, "w", 1)
    assert await redis.pttl(key) == -1
    await finish(store, job_id, "w", 1)
    assert 0 < await redis.pttl(key) <= 3_600_000


async def test_a_deleted_job_is_forgotten_when_it_ends(store: JobStore) -> None:
    job_id = await submitted(store)
    await store.claim(MODEL, "w", 1)
    await store.cancel(job_id, "deleted", "pod", forget=True)
    record = await store.get(job_id)
    assert record is not None
    assert record.deleted
    assert await finish(store, job_id, "w", 1, "cancelled")
    assert await store.get(job_id) is None


async def test_the_end_of_a_deleted_job_leaves_its_idempotency_key_to_the_next(store: JobStore) -> None:
    first = await store.submit(request(), idempotency_key="k", fingerprint="f")
    await store.claim(MODEL, "w", 1)
    await store.cancel(first.id, "deleted", "pod", forget=True)
    second = await store.submit(request(), idempotency_key="k", fingerprint="f")
    assert second.created, "the key is free from the delete on"
    assert await finish(store, first.id, "w", 1, "cancelled")
    repeat = await store.submit(request(), idempotency_key="k", fingerprint="f")
    assert (repeat.created, repeat.id) == (False, second.id)


async def test_nothing_is_left_of_any_ended_job(settings: Settings, control: Redis, redis: Redis) -> None:
    """scale-agentex-python#339: after every kind of end and the time to live, not one key."""
    short = settings.model_copy(update={"result_ttl_seconds": 0.05, "lease_seconds": 0.001, "max_attempts": 1})
    store = JobStore(control, short)
    done, cancelled, running, lost, late = [
        (await store.submit(request(queue_timeout_seconds=0.001 if i == 4 else None), idempotency_key=f"k{i}",
                            fingerprint="f")).id for i in range(5)
    ]  # fmt: skip
    await until(lambda: store.expire_queued("pod"), "the late one is taken out")
    await finish(store, late, "pod", 1, "failed")
    await store.cancel(cancelled, "why", "pod")
    await finish(store, cancelled, "pod", 1, "cancelled")
    await store.claim(MODEL, "w", 3)
    await finish(store, done, "w", 1)
    await store.cancel(running, "why", "pod")
    await finish(store, running, "w", 1, "cancelled")
    to_end = await until(lambda: _to_end(store), "the lost one is given up")
    assert [job.id for job in to_end] == [lost]
    await finish(store, lost, "janitor", 2, "failed")

    # These outlive their last use by a minute at most.
    short_lived = {store.keys.wake(MODEL).encode(), store.keys.swept(MODEL).encode()}

    async def leftovers() -> list[bytes]:
        ours = [key async for key in redis.scan_iter(f"{settings.namespace}:*")]
        arq = [key for job_id in (done, cancelled, running, lost, late) async for key in redis.scan_iter(f"*{job_id}*")]
        return [key for key in {*ours, *arq} if key not in short_lived]

    async def clean() -> bool:
        return not await leftovers()

    await until(clean, "no key is left")
    # The wake list lives for a minute when nobody waits on it; a claim that finds no job removes it.
    await store.claim(MODEL, "w", 1)
    assert not await redis.exists(store.keys.wake(MODEL))


async def _requeued(store: JobStore) -> int:
    return (await store.requeue_expired(MODEL, "janitor"))[0]


async def _lost(store: JobStore, job_id: str) -> bool:
    await store.requeue_expired(MODEL, "janitor")
    record = await store.get(job_id)
    return record is not None and record.state == "queued"


async def _requeued_or_waiting(store: JobStore, redis: Redis) -> bool:
    await store.requeue_expired(MODEL, "janitor")
    return bool(await redis.zcard(store.keys.queue(MODEL)))


async def _to_end(store: JobStore) -> Any:
    return (await store.requeue_expired(MODEL, "janitor"))[1]


async def test_a_job_whose_log_cannot_be_written_ends_all_the_same(
    store: JobStore, control: Redis, settings: Settings
) -> None:
    """Else whoever claims it fails, and the next one after the lease, for ever."""
    job_id = await submitted(store)
    [claim] = await store.claim(MODEL, "w", 1)
    await control.set(store.keys.stream(job_id), "not a stream")
    ender = Ender(store, EventLog(control, store.keys), settings, "w")
    await ender.end(ToEnd(job_id, claim.attempt, "worker_lost"))
    record = await store.get(job_id)
    assert record is not None
    assert record.state == "failed"
    assert record.error is not None
    assert record.error["code"] == "log_lost"
    assert await store.claim(MODEL, "w", 1) == []
