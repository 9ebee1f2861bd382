"""The writer: nothing lost, nothing twice, within the stream's bound and within memory, whatever Redis does."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from redis.asyncio import Redis
from redis.exceptions import ConnectionError, OutOfMemoryError

from common import events
from common.eventlog import EventLog, Fenced
from common.events import EventId
from common.keys import Keys
from common.records import new_job_id
from common.settings import Settings
from common.tasks import cancel_all
from tests.support.wait import until
from workers.pipe import Command, Pipe
from workers.writer import JobLog, StreamWriter


class Faulty(Pipe):
    """The real pipe, with faults put between it and the writer."""

    def __init__(self, client: Redis) -> None:
        super().__init__(client)
        self.lose_replies = 0
        self.refuse = 0
        self.away = False
        self.flushes = 0

    async def exchange(self, commands: list[Command]) -> list[Any]:
        self.flushes += 1
        if self.away:
            raise ConnectionError("away")
        if self.refuse:
            self.refuse -= 1
            return [OutOfMemoryError("command not allowed")] * len(commands)
        replies = await super().exchange(commands)
        if self.lose_replies:
            self.lose_replies -= 1
            raise ConnectionError("the reply was lost")
        return replies


class Bench:
    def __init__(self, settings: Settings, redis: Redis, control: Redis) -> None:
        self.keys = Keys(settings.namespace)
        self.faulty = Faulty(control)
        self.writer = StreamWriter(self.faulty, self.keys, settings)
        self.eventlog = EventLog(redis, self.keys)
        self.redis = redis

    def open(self, job_id: str, attempt: int = 1, max_tokens: int | None = None) -> JobLog:
        job_log = self.writer.open(job_id, EventId(attempt, 0), max_tokens)
        job_log.append(events.started(attempt, "w"))
        return job_log

    async def text(self, job_id: str) -> str:
        return "".join(event.get("content", "") for _, event in await self.eventlog.read_all(job_id))


@pytest.fixture
async def bench(settings: Settings, redis: Redis, control: Redis) -> AsyncIterator[Bench]:
    bench = Bench(settings, redis, control)
    running = asyncio.create_task(bench.writer.run())
    yield bench
    await cancel_all([running])


@pytest.fixture
def job_id() -> str:
    return new_job_id("job")


def token(i: int) -> dict[str, Any]:
    return events.delta(content=f"{i} ", token_ids=[i])


def expected(count: int) -> str:
    return "".join(f"{i} " for i in range(count))


async def test_everything_arrives_in_order_and_tokens_share_entries(bench: Bench, job_id: str) -> None:
    """scale-agentex-python#333: nobody waits for a publish, and what came meanwhile goes out together."""
    job_log = bench.open(job_id)
    for i in range(500):
        job_log.append(token(i))
    await job_log.drained()
    assert await bench.text(job_id) == expected(500)
    assert bench.faulty.flushes < 20


async def test_a_token_does_not_wait_for_the_next(bench: Bench, job_id: str) -> None:
    """Nor for anything else: an engine may take its time."""
    job_log = bench.open(job_id)
    for i in range(3):
        job_log.append(token(i))
        await until(lambda: not job_log.due(), "what is due has been sent")
        assert await bench.text(job_id) == expected(i + 1)


async def test_one_pipeline_serves_all_jobs(bench: Bench) -> None:
    ids = [new_job_id("job") for _ in range(100)]
    logs = [bench.open(job_id) for job_id in ids]
    await asyncio.gather(*(job_log.drained() for job_log in logs))
    before = bench.faulty.flushes
    for job_log in logs:
        job_log.append(token(0))
    await asyncio.gather(*(job_log.drained() for job_log in logs))
    assert bench.faulty.flushes - before <= 2


@pytest.mark.parametrize("max_tokens", [5000, None])
async def test_a_long_answer_fits_the_bound_without_loss(
    settings: Settings, redis: Redis, control: Redis, job_id: str, max_tokens: int | None
) -> None:
    """Invariant 3: entries get larger, the stream never longer than its bound, and nothing is lost."""
    bench = Bench(settings.model_copy(update={"stream_maxlen": 200}), redis, control)
    running = asyncio.create_task(bench.writer.run())
    job_log = bench.open(job_id, max_tokens=max_tokens)
    for i in range(5000):
        job_log.append(token(i))
        await asyncio.sleep(0)
        if i % 10 == 0:
            await job_log.room()
            await until(lambda: not job_log.due(), "what is due has been sent")
    job_log.append(events.end("completed"))
    await job_log.drained()
    assert await redis.xlen(bench.keys.stream(job_id)) <= 200
    assert await bench.text(job_id) == expected(5000)
    await cancel_all([running])


async def test_a_lost_reply_writes_nothing_twice(bench: Bench, job_id: str) -> None:
    """Redis refuses the resent id, and the writer knows why."""
    job_log = bench.open(job_id)
    await job_log.drained()
    for i in range(20):
        bench.faulty.lose_replies = 1
        job_log.append(token(i))
        await job_log.drained()
    assert await bench.text(job_id) == expected(20)
    assert bench.faulty.lose_replies == 0


async def test_a_refusal_for_lack_of_memory_is_waited_out(bench: Bench, job_id: str) -> None:
    job_log = bench.open(job_id)
    bench.faulty.refuse = 3
    for i in range(5):
        job_log.append(token(i))
    await job_log.drained()
    assert await bench.text(job_id) == expected(5)


async def test_a_fenced_writer_stops_and_says_so(bench: Bench, redis: Redis, job_id: str) -> None:
    """Invariant 6: the moment a newer attempt has written, Redis takes nothing more of the old one."""
    job_log = bench.open(job_id)
    job_log.append(token(0))
    await job_log.drained()
    await bench.eventlog.append_attempt(job_id, 2, events.started(2, "other"))
    job_log.append(token(1))
    with pytest.raises(Fenced):
        await job_log.drained()
    with pytest.raises(Fenced):
        job_log.append(token(2))
    assert await bench.text(job_id) == expected(1)


async def test_a_stalled_writer_does_not_revive_an_expired_stream(bench: Bench, redis: Redis, job_id: str) -> None:
    job_log = bench.open(job_id)
    job_log.append(token(0))
    await job_log.drained()
    await redis.delete(bench.keys.stream(job_id))
    job_log.append(token(1))
    with pytest.raises(Fenced):
        await job_log.drained()
    assert not await redis.exists(bench.keys.stream(job_id))


async def test_memory_is_bounded_while_redis_is_away(bench: Bench, settings: Settings, job_id: str) -> None:
    """Invariant 4: the job waits, not our memory; and when Redis is back, all of it arrives."""
    job_log = bench.open(job_id)
    await job_log.drained()
    bench.faulty.away = True
    said = 0

    async def engine() -> None:
        nonlocal said
        for i in range(100_000):
            job_log.append(events.delta(content=f"{i:099d} "))
            said = i + 1
            await job_log.room()
            await asyncio.sleep(0)

    speaking = asyncio.create_task(engine())
    await until(lambda: bench.writer.outages >= 3 and job_log.full, "several flushes failed, and it may hold no more")
    before = said
    await until(lambda: bench.writer.outages >= 5, "more flushes failed")
    assert said == before, "the engine is held back"
    assert said * 100 <= settings.pending_bytes_per_job + 1000
    bench.faulty.away = False
    await until(lambda: said > before + 100, "the engine goes on")
    await cancel_all([speaking])
    await job_log.drained()
    assert len(await bench.text(job_id)) == said * 100


async def test_one_job_that_cannot_be_written_does_not_stop_the_others(bench: Bench, redis: Redis) -> None:
    broken, well = new_job_id("job"), new_job_id("job")
    await redis.set(bench.keys.stream(broken), "not a stream")
    broken_log, well_log = bench.open(broken), bench.open(well)
    well_log.append(token(0))
    with pytest.raises(Exception, match="WRONGTYPE"):
        await broken_log.drained()
    await well_log.drained()
    assert await bench.text(well) == expected(1)


async def test_a_writer_never_lets_a_stream_expire(bench: Bench, redis: Redis, job_id: str) -> None:
    """aegra#599: one that is alive never does, however quiet; and a fenced one is another's, even if it has ended."""
    job_log = bench.open(job_id)
    await job_log.drained()
    assert await redis.pttl(bench.keys.stream(job_id)) == -1
    bench.faulty.away = True
    job_log.append(events.end("completed"))
    await bench.eventlog.append_attempt(job_id, 2, events.started(2, "other"))
    bench.faulty.away = False
    with pytest.raises(Fenced):
        await job_log.drained()
    assert await redis.pttl(bench.keys.stream(job_id)) == -1


async def test_what_cannot_be_encoded_fails_its_own_job_only(bench: Bench) -> None:
    broken, well = new_job_id("job"), new_job_id("job")
    broken_log, well_log = bench.open(broken), bench.open(well)
    broken_log.append(events.delta(content="\ud83d"))
    well_log.append(token(0))
    with pytest.raises(UnicodeEncodeError):
        await broken_log.drained()
    await well_log.drained()
    assert await bench.text(well) == expected(1)


async def test_the_writer_forgets_jobs_that_are_over(bench: Bench) -> None:
    """Also when there is never a moment without anything to send."""
    busy = bench.open(new_job_id("job"))

    async def speak() -> None:
        while True:
            busy.append(token(0))
            await asyncio.sleep(0)

    speaking = asyncio.create_task(speak())
    for _ in range(30):
        job_log = bench.open(new_job_id("job"))
        job_log.append(events.end("completed"))
        await job_log.drained()
    assert len(bench.writer._dirty) <= 3
    await cancel_all([speaking])
