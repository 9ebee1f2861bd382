"""The hub: one XREAD for all, readers that are only cursors."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from redis.asyncio import Redis
from redis.exceptions import ConnectionError

from api.hub import Hub, HubClosing, Reader, StreamOver
from api.hub.shard import ENTRIES_PER_READ
from api.hub.topic import RING_ENTRIES
from common import events
from common.errors import ServerFault
from common.eventlog import EventLog, Gap
from common.events import START, EventId
from common.jobs import JobStore
from common.keys import Keys
from common.records import JobRequest, Options, new_job_id
from common.settings import Settings
from common.tasks import cancel_all
from tests.support.wait import until


class Rig:
    """A hub on the real Redis, and a hand that writes streams."""

    def __init__(self, settings: Settings, control: Redis) -> None:
        self.keys = Keys(settings.namespace)
        self.redis = control
        self.jobs = JobStore(control, settings)
        self.eventlog = EventLog(control, self.keys)
        self.hub = Hub(settings.redis_url, control, self.eventlog, self.jobs, self.keys)

    async def job(self) -> str:
        request = JobRequest(new_job_id("job"), "chat", "m", "alice", {"messages": []}, Options())
        return (await self.jobs.submit(request)).id

    async def write(self, job_id: str, first: int, last: int, attempt: int = 1) -> None:
        async with self.redis.pipeline(transaction=False) as pipe:
            for seq in range(first, last + 1):
                entry: dict[Any, Any] = {"e": events.encode(events.delta(content=f"{seq} "))}
                pipe.xadd(self.keys.stream(job_id), entry, id=f"{attempt}-{seq}")
            await pipe.execute()


async def read_until(reader: Reader, last: int) -> list[int]:
    seqs: list[int] = []
    while not seqs or seqs[-1] < last:
        seqs += [id.seq for id, _ in await reader.next()]
    return seqs


@pytest.fixture
async def rig(settings: Settings, control: Redis) -> AsyncIterator[Rig]:
    rig = Rig(settings, control)
    watching = asyncio.create_task(rig.hub.run())
    yield rig
    await cancel_all([watching])
    await rig.hub.stop()


async def test_a_reader_gets_everything_from_before_and_after_it_came(rig: Rig) -> None:
    """resumable-stream#41, LibreChat#11710: attach at any moment, the first token included."""
    job_id = await rig.job()
    early = rig.hub.open(job_id, START)
    await rig.write(job_id, 1, 5)
    assert await read_until(early, 5) == [1, 2, 3, 4, 5]
    late = rig.hub.open(job_id, START)
    middle = rig.hub.open(job_id, EventId(1, 3))
    await rig.write(job_id, 6, 8)
    assert await read_until(early, 8) == [6, 7, 8]
    assert await read_until(late, 8) == list(range(1, 9))
    assert await read_until(middle, 8) == list(range(4, 9))


async def test_many_readers_of_one_stream_cost_one_key(rig: Rig) -> None:
    job_id = await rig.job()
    readers = [rig.hub.open(job_id, START) for _ in range(50)]
    assert rig.hub.streams == 1
    await rig.write(job_id, 1, 100)
    for seqs in await asyncio.gather(*(read_until(reader, 100) for reader in readers)):
        assert seqs == list(range(1, 101))
    for reader in readers:
        rig.hub.close(reader)
    assert rig.hub.streams == 0


async def test_a_slow_reader_holds_no_memory_and_misses_nothing(rig: Rig) -> None:
    """Invariant 4: the pod keeps a bounded ring for it, and it catches up from Redis."""
    job_id = await rig.job()
    slow, fast = rig.hub.open(job_id, START), rig.hub.open(job_id, START)
    topic = slow.topic
    for first in range(1, 2001, 100):
        await rig.write(job_id, first, first + 99)
        await read_until(fast, first + 99)
        assert len(topic.ring) <= RING_ENTRIES + ENTRIES_PER_READ
    assert await read_until(slow, 2000) == list(range(1, 2001))


async def test_a_stream_joins_a_read_that_is_blocked(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for the block of another stream's silence to end."""
    monkeypatch.setattr("api.hub.shard.BLOCK_SECONDS", 600)
    quiet = await rig.job()
    waiting = asyncio.create_task(rig.hub.open(quiet, START).next())
    await until(lambda: rig.hub._shards[0][0]._client_id, "the shard is connected")
    for _ in range(20):
        job_id = await rig.job()
        reader = rig.hub.open(job_id, START)
        await rig.write(job_id, 1, 1)
        assert await read_until(reader, 1) == [1]
        rig.hub.close(reader)
    assert not waiting.done()
    await cancel_all([waiting])


async def test_a_stream_joins_a_blocked_read_though_unblocking_it_fails_at_first(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("api.hub.shard.BLOCK_SECONDS", 600)
    silent, other = await rig.job(), await rig.job()
    rig.hub.open(silent, START)
    unblock, failures = rig.redis.client_unblock, [ConnectionError("no connection available")]

    async def client_unblock(client_id: int) -> Any:
        if failures:
            raise failures.pop()
        return await unblock(client_id)

    monkeypatch.setattr(rig.redis, "client_unblock", client_unblock)
    await until(lambda: _blocked(rig), "the read is blocked")
    await rig.write(other, 1, 1)
    assert await read_until(rig.hub.open(other, START), 1) == [1]
    assert not failures


async def _blocked(rig: Rig) -> bool:
    """Whether the first shard waits in Redis; others may wait there, too."""
    shard = str(rig.hub._shards[0][0]._client_id)
    return any(client["id"] == shard and "b" in client["flags"] for client in await rig.redis.client_list())


async def test_a_shard_that_dies_is_not_silent(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Up to 256 streams stand still with it."""
    monkeypatch.setattr("api.hub.topic.Topic.take", None)
    job_id = await rig.job()
    rig.hub.open(job_id, START)
    await rig.write(job_id, 1, 1)
    await until(lambda: "hub shard 0 died" in caplog.text, "the log says it")


async def test_a_stream_that_cannot_be_read_ends_its_own_readers_only(rig: Rig) -> None:
    """Redis refuses a whole XREAD for the sake of one key; here somebody has put a string where a log should be."""
    well, broken = await rig.job(), await rig.job()
    reader, lost = rig.hub.open(well, START), rig.hub.open(broken, START)
    await rig.write(well, 1, 1)
    await rig.write(broken, 1, 1)
    assert await read_until(reader, 1) == await read_until(lost, 1) == [1]
    await rig.redis.set(rig.keys.stream(broken), "not a stream")
    late = rig.hub.open(broken, START)
    rig.hub.open(await rig.job(), START)  # ends the read under way: a blocked one does not look at the key again
    for one in (lost, late):
        with pytest.raises(ServerFault) as failed:
            await one.next()
        assert failed.value.code == "log_lost"
        rig.hub.close(one)
    await rig.write(well, 2, 3)
    assert await read_until(reader, 3) == [2, 3]
    await rig.redis.delete(rig.keys.stream(broken))
    await rig.write(broken, 1, 1)
    assert await read_until(rig.hub.open(broken, START), 1) == [1], "a reader who comes later looks again"


async def test_more_streams_than_one_shard_holds(rig: Rig) -> None:
    ids = [await rig.job() for _ in range(300)]
    readers = [rig.hub.open(job_id, START) for job_id in ids]
    assert len(rig.hub._shards) == 2
    for job_id in ids:
        await rig.write(job_id, 1, 3)
    for seqs in await asyncio.gather(*(read_until(reader, 3) for reader in readers)):
        assert seqs == [1, 2, 3]


async def test_a_gap_is_an_error(rig: Rig) -> None:
    """deer-flow#4413, also in the middle of a read."""
    job_id = await rig.job()
    reader = rig.hub.open(job_id, START)
    await rig.write(job_id, 1, 3)
    assert await read_until(reader, 3) == [1, 2, 3]
    await rig.write(job_id, 5, 6)
    behind = rig.hub.open(job_id, EventId(1, 5))
    with pytest.raises(Gap):
        await reader.next()
    assert await read_until(behind, 6) == [6], "who is behind the gap does not notice"


async def test_a_reader_that_was_trimmed_away_is_told(rig: Rig) -> None:
    job_id = await rig.job()
    slow, fast = rig.hub.open(job_id, START), rig.hub.open(job_id, START)
    await rig.write(job_id, 1, 500)
    await read_until(fast, 500)
    await rig.redis.xtrim(rig.keys.stream(job_id), maxlen=50, approximate=False)
    with pytest.raises(Gap):
        await slow.next()


async def test_a_job_that_ended_without_an_end_event_ends_its_readers(rig: Rig) -> None:
    """resumable-stream#47: the final marker is lost and the reader stays open for ever."""
    job_id = await rig.job()
    reader = rig.hub.open(job_id, START)
    await rig.write(job_id, 1, 2)
    assert await read_until(reader, 2) == [1, 2]
    await rig.jobs.claim("m", "w", 1)
    await rig.jobs.finish(job_id, "m", "w", 1, "completed", [])
    with pytest.raises(StreamOver):
        await reader.next()


async def test_readers_are_told_when_a_job_has_lost_its_worker(rig: Rig) -> None:
    """twenty#22482: keepalives must not hide that nobody works."""
    job_id = await rig.job()
    reader = rig.hub.open(job_id, START)
    await rig.write(job_id, 1, 1)
    await read_until(reader, 1)
    await rig.jobs.claim("m", "w", 1)
    await rig.jobs.release(job_id, "m", "w", 1)
    assert await reader.next() == []
    assert reader.topic.handed_over
    await rig.write(job_id, 2, 2, attempt=2)
    assert await read_until(reader, 2) == [2]


async def test_cut_connections_lose_nothing(rig: Rig) -> None:
    """redis-py#2665: after cancelled and cut reads nobody gets another's replies."""
    ids = [await rig.job() for _ in range(20)]
    readers = [rig.hub.open(job_id, START) for job_id in ids]
    reading = [asyncio.create_task(read_until(reader, 60)) for reader in readers]
    for seq in range(1, 61):
        for job_id in ids:
            await rig.write(job_id, seq, seq)
        if seq % 20 == 0:
            await rig.redis.client_kill_filter(_type="normal", skipme=True)
    for seqs in await asyncio.gather(*reading):
        assert seqs == list(range(1, 61))


async def test_readers_are_sent_away(rig: Rig) -> None:
    reader = rig.hub.open(await rig.job(), START)
    waiting = asyncio.create_task(reader.next())
    await asyncio.sleep(0)
    rig.hub.send_away()
    with pytest.raises(HubClosing):
        await waiting


@pytest.mark.parametrize("cursor", [EventId(0, 3), EventId(1, 8), EventId(1, 50), EventId(3, 3)])
async def test_a_cursor_that_is_not_in_the_log_never_passes_for_one(rig: Rig, cursor: EventId) -> None:
    """Of a made-up attempt, or of entries that Redis lost before another attempt wrote others in their place."""
    job_id = await rig.job()
    await rig.write(job_id, 1, 5)
    await rig.write(job_id, 6, 9, attempt=2)
    reader = rig.hub.open(job_id, cursor)
    good = rig.hub.open(job_id, START)
    assert await read_until(good, 9) == list(range(1, 10))
    if cursor < EventId(2, 9):
        with pytest.raises(Gap):
            await reader.next()
    else:
        waiting = asyncio.create_task(reader.next())
        await rig.write(job_id, 10, 11, attempt=4)
        with pytest.raises(Gap):
            await waiting
