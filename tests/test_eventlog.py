"""The event log: positions, fencing, and gaps that Redis itself would not tell."""

import pytest
from redis.asyncio import Redis

from common import events
from common.eventlog import AlreadyEnded, EventLog, Fenced, Gap
from common.events import START, EventId
from common.keys import Keys
from common.records import new_job_id
from common.settings import Settings


@pytest.fixture
def keys(settings: Settings) -> Keys:
    return Keys(settings.namespace)


@pytest.fixture
def log(control: Redis, keys: Keys) -> EventLog:
    return EventLog(control, keys)


@pytest.fixture
def job_id() -> str:
    return new_job_id("job")


async def write(redis: Redis, keys: Keys, job_id: str, id: str, text: str) -> None:
    await redis.xadd(keys.stream(job_id), {"e": events.encode(events.delta(content=text))}, id=id)


async def test_seq_goes_on_across_attempts(log: EventLog, redis: Redis, keys: Keys, job_id: str) -> None:
    assert await log.append_attempt(job_id, 1, events.started(1, "w1")) == (1, 1)
    await write(redis, keys, job_id, "1-2", "a")
    assert await log.append_attempt(job_id, 3, events.started(3, "w3")) == (3, 3)
    assert [id for id, _ in await log.read_all(job_id)] == [(1, 1), (1, 2), (3, 3)]


async def test_an_older_attempt_is_fenced(log: EventLog, redis: Redis, keys: Keys, job_id: str) -> None:
    """Redis refuses the stalled worker by itself; the script refuses a stalled takeover."""
    await log.append_attempt(job_id, 2, events.started(2, "w2"))
    with pytest.raises(Fenced):
        await log.append_attempt(job_id, 1, events.started(1, "w1"))
    with pytest.raises(Exception, match="equal or smaller"):
        await write(redis, keys, job_id, "1-2", "from the dead")


async def test_a_repeated_first_entry_is_written_once(log: EventLog, job_id: str) -> None:
    """Its reply may have been lost."""
    first = await log.append_attempt(job_id, 2, events.started(2, "w"))
    assert await log.append_attempt(job_id, 2, events.started(2, "w")) == first
    assert len(await log.read_all(job_id)) == 1


async def test_a_log_ends_once(log: EventLog, job_id: str) -> None:
    """Invariant 1: whoever comes after the end learns of it and writes nothing."""
    await log.append_attempt(job_id, 1, events.end("completed"))
    with pytest.raises(AlreadyEnded):
        await log.append_attempt(job_id, 2, events.end("cancelled"))
    assert [event["status"] for _, event in await log.read_all(job_id)] == ["completed"]


async def test_a_trimmed_position_is_an_error_and_not_a_gap(
    log: EventLog, redis: Redis, keys: Keys, job_id: str
) -> None:
    """deer-flow#4413: resuming from a trimmed position silently skips text, because XREAD does."""
    for seq in range(1, 11):
        await write(redis, keys, job_id, f"1-{seq}", "x")
    await redis.xtrim(keys.stream(job_id), maxlen=3, approximate=False)
    with pytest.raises(Gap):
        await log.read_after(job_id, EventId(1, 2))
    with pytest.raises(Gap):
        await log.read_after(job_id, START)
    assert [id.seq for id, _ in await log.read_after(job_id, EventId(1, 7))] == [8, 9, 10]


@pytest.mark.parametrize("text", ["", "1", "1-", "-1", "a-b", "1-2-3", "٣-١", "1-" + "9" * 30, "-1-2", "1 -2"])
def test_what_is_no_position(text: str) -> None:
    with pytest.raises(ValueError):
        EventId.parse(text)


def test_positions_order_like_redis_orders_them() -> None:
    assert EventId.parse("1-9") < EventId.parse("1-10") < EventId.parse("2-3")
    assert str(EventId.parse(b"12-345")) == "12-345"


def test_merging_keeps_what_readers_concatenate() -> None:
    """Text, reasoning and tool calls may merge forwards, never backwards."""
    reasoning = events.delta(reasoning="r", token_ids=[1])
    content = events.delta(content="c", token_ids=[2], finish_reason="stop")
    assert events.mergeable(reasoning, content)
    assert not events.mergeable(content, reasoning)
    assert not events.mergeable(events.delta(0, content="a"), events.delta(1, content="b"))
    merged = dict(reasoning)
    events.merge_delta(merged, content)
    assert merged["reasoning"] == "r"
    assert merged["content"] == "c"
    assert merged["token_ids"] == [1, 2]
    assert merged["finish_reason"] == "stop"


def test_merged_tool_calls_are_one_piece_each() -> None:
    """OpenAI's clients may rely on it: LangChain makes two broken calls of two pieces in one chunk."""
    first = [{"index": i, "id": f"c{i}", "function": {"name": "f", "arguments": ""}} for i in (0, 1)]
    merged = events.delta(tool_calls=[first[0]])
    for piece in (
        first[1],
        {"index": 0, "function": {"arguments": '{"a"'}},
        {"index": 1, "id": None, "function": {"arguments": "{"}},
        {"index": 0, "function": {"name": None, "arguments": ": 1}"}},
        {"index": 1, "function": {"arguments": "}"}},
    ):
        events.merge_delta(merged, events.delta(tool_calls=[piece]))
    assert merged["tool_calls"] == [
        {"index": 0, "id": "c0", "function": {"name": "f", "arguments": '{"a": 1}'}},
        {"index": 1, "id": "c1", "function": {"name": "f", "arguments": "{}"}},
    ]
    assert first[0]["function"] == {"name": "f", "arguments": ""}, "a piece that somebody else holds is not changed"
