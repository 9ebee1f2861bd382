"""Batches on the control plane: what is accepted, what is not, and what is left of either, on a real Redis."""

from typing import Any

import pytest
from redis.asyncio import Redis

from common.batches import BatchStore, Draft
from common.errors import Conflict, TooManyRequests, Unavailable
from common.jobs import JobStore
from common.records import JobRequest, Options, new_job_id
from common.settings import Settings

MODEL = "m"


@pytest.fixture
def store(control: Redis, settings: Settings) -> BatchStore:
    return BatchStore(control, settings)


@pytest.fixture
def jobs(control: Redis, settings: Settings) -> JobStore:
    return JobStore(control, settings)


async def drafted(store: BatchStore, lines: int, **options: Any) -> Draft:
    draft = store.draft("alice")
    for number in range(lines):
        request = JobRequest(new_job_id("chat"), "chat", MODEL, "alice", {"messages": []}, Options(**options))
        await draft.add(f"line {number}", request)
    return draft


async def everything(redis: Redis, settings: Settings, draft: Draft) -> set[bytes]:
    arq = [f"arq:job:{job_id}" for job_id in draft.places[::5]]
    return {*await redis.keys(f"{settings.namespace}:*"), *[key.encode() for key in arq if await redis.exists(key)]}


async def test_lines_wait_in_order_and_behind_every_other_job(store: BatchStore, jobs: JobStore) -> None:
    draft = await drafted(store, 120, priority=100)
    await store.submit(draft)
    request = JobRequest(new_job_id("job"), "chat", MODEL, "bob", {}, Options(priority=-100))
    await jobs.submit(request)
    claims = await jobs.claim(MODEL, "w", 200)
    assert [claim.record.id for claim in claims] == [request.id, *draft.places[::5]]
    assert all(claim.arq_payload for claim in claims)


async def test_a_line_with_a_shorter_deadline_comes_first(store: BatchStore, jobs: JobStore) -> None:
    patient, urgent = await drafted(store, 1), await drafted(store, 1, deadline_seconds=3600)
    await store.submit(patient)
    await store.submit(urgent)
    claims = await jobs.claim(MODEL, "w", 2)
    assert [claim.record.id for claim in claims] == [urgent.places[0], patient.places[0]]


async def test_a_draft_lapses_and_an_accepted_batch_does_not(
    store: BatchStore, redis: Redis, settings: Settings
) -> None:
    draft = await drafted(store, 60)
    await draft.flush()
    written = await everything(redis, settings, draft)
    assert len(written) == 2 * 60 + 1
    assert all([await redis.pttl(key) > 0 for key in written])
    await store.submit(draft)
    assert all([await redis.pttl(key) == -1 for key in written])


async def test_what_is_refused_is_forgotten(store: BatchStore, redis: Redis, settings: Settings) -> None:
    full = BatchStore(redis, settings.model_copy(update={"max_queue_depth": 20}))
    draft = await drafted(full, 11)
    with pytest.raises(TooManyRequests):
        await full.submit(draft)
    await draft.discard()
    assert not await everything(redis, settings, draft)


async def test_a_submit_whose_reply_was_lost_is_one_batch_and_is_not_discarded(
    store: BatchStore, jobs: JobStore
) -> None:
    draft = await drafted(store, 3)
    first = await store.submit(draft)
    [running] = await jobs.claim(MODEL, "w", 1)
    again = await store.submit(draft)
    assert first == again
    assert again.created
    await draft.discard()
    rest = await jobs.claim(MODEL, "w", 10)
    assert [claim.record.id for claim in (running, *rest)] == draft.places[::5]


async def test_a_line_that_redis_lost_refuses_the_batch(store: BatchStore, jobs: JobStore, redis: Redis) -> None:
    draft = await drafted(store, 3)
    await draft.flush()
    await redis.delete(jobs.keys.job(draft.places[5]))
    with pytest.raises(Unavailable):
        await store.submit(draft)
    assert await jobs.claim(MODEL, "w", 10) == []


async def test_counts_are_those_of_ends_and_the_last_one_ends_the_batch(
    store: BatchStore, jobs: JobStore, redis: Redis, settings: Settings
) -> None:
    draft = await drafted(store, 3)
    await store.submit(draft)
    claims = await jobs.claim(MODEL, "w", 3)
    for claim, state in zip(claims, ("completed", "incomplete", "failed"), strict=True):
        before = await store.get(draft.id)
        assert before is not None
        assert (before.status, before.expires_at) == ("in_progress", None)
        assert all([await redis.pttl(jobs.keys.job(job_id)) == -1 for job_id in draft.places[::5]])
        for _ in range(2):
            assert await jobs.finish(claim.record.id, MODEL, "w", 1, state, [])
    batch = await store.get(draft.id)
    assert batch is not None
    assert (batch.status, batch.total, batch.completed, batch.failed) == ("completed", 3, 2, 1)
    batch_keys = [key for key in await everything(redis, settings, draft) if b":wake:" not in key]
    assert len(batch_keys) == 5
    assert all([0 < await redis.pttl(key) <= settings.result_ttl_ms for key in batch_keys])


async def test_a_cancel_takes_all_that_has_not_ended(store: BatchStore, jobs: JobStore) -> None:
    draft = await drafted(store, 5)
    await store.submit(draft)
    done, running = await jobs.claim(MODEL, "w", 2)
    await jobs.finish(done.record.id, MODEL, "w", 1, "completed", [])
    await store.cancel(draft.id, "because")
    [late] = await jobs.claim(MODEL, "w", 1)
    assert late.cancel_reason == "because", "who claims it now starts no engine for it"
    to_end = await jobs.expire_queued("janitor")
    assert {job.why for job in to_end} == {"because"}
    for job_id, worker, attempt in [
        (running.record.id, "w", 1),
        (late.record.id, "w", 1),
        *((job.id, "janitor", job.attempt) for job in to_end),
    ]:
        assert await jobs.finish(job_id, MODEL, worker, attempt, "cancelled", [])
    batch = await store.get(draft.id)
    assert batch is not None
    assert (batch.status, batch.completed, batch.failed) == ("cancelled", 1, 4)
    await store.cancel(draft.id, "a cancel whose client saw it before all had ended")
    whole = await drafted(store, 1)
    await store.submit(whole)
    [claim] = await jobs.claim(MODEL, "w", 1)
    await jobs.finish(claim.record.id, MODEL, "w", 1, "completed", [])
    with pytest.raises(Conflict):
        await store.cancel(whole.id, "too late")
