"""The event log of a job: one Redis stream, `<attempt>-<seq>` ids, one msgpack field.

Everything here is on the stream plane. The hot paths (a worker's flush, a pod's multiplexed XREAD) have their
own modules, workers/writer.py and api/hub; this one has what everybody needs now and then.
"""

from typing import Any

from common import events, scripts
from common.connections import Client
from common.events import START, Event, EventId
from common.keys import Keys

FIELD = b"e"
READ_COUNT = 256
"""Entries per read when catching up: bounds the memory of one reply."""

Entry = tuple[EventId, bytes]


class Fenced(Exception):
    """A newer attempt has written to the log: the caller no longer owns the job and must write nothing."""


class AlreadyEnded(Exception):
    """The log has its `end` event; only the job's record is left to be finished."""


class Gap(Exception):
    """The entry after a cursor is gone: trimmed, or lost by Redis."""

    def __init__(self, cursor: EventId, found: EventId | None) -> None:
        super().__init__(f"nothing directly after {cursor}, found {found}")


def check_contiguous(cursor: EventId, found: EventId) -> None:
    """`seq` has no holes, so the entry after a cursor is known in advance; Redis itself would skip silently.

    Raises Gap.
    """
    if found.seq != cursor.seq + 1:
        raise Gap(cursor, found)


class EventLog:
    def __init__(self, client: Client, keys: Keys) -> None:
        self._client = client
        self._keys = keys

    async def append_attempt(self, job_id: str, attempt: int, event: Event) -> EventId:
        """Write the first entry of `attempt` and fence all earlier ones.

        Raises Fenced or AlreadyEnded.
        """
        reply = await scripts.append_attempt(self._client, [self._keys.stream(job_id)], [attempt, events.encode(event)])
        verdict, id = reply[0], EventId.parse(reply[1])
        if verdict == b"fenced":
            raise Fenced(f"{job_id}: attempt {attempt} is behind {id}")
        if verdict == b"ended":
            raise AlreadyEnded(f"{job_id}: ended at {id}")
        return id

    async def read_after(self, job_id: str, cursor: EventId = START, count: int = READ_COUNT) -> list[Entry]:
        """Up to `count` entries after `cursor`, undecoded; empty at the end of what is there.

        Raises Gap when the entry directly after the cursor is missing but later ones exist.
        """
        raw = await self._client.xrange(self._keys.stream(job_id), f"({cursor}", "+", count)
        entries = [parse_entry(item) for item in raw]
        if entries:
            check_contiguous(cursor, entries[0][0])
        return entries

    async def read_all(self, job_id: str) -> list[tuple[EventId, Event]]:
        """The whole log, decoded. Bounded by `stream_maxlen` entries of one answer."""
        whole: list[tuple[EventId, Event]] = []
        cursor = START
        while True:
            entries = await self.read_after(job_id, cursor)
            whole += [(id, events.decode(data)) for id, data in entries]
            if len(entries) < READ_COUNT:
                return whole
            cursor = entries[-1][0]

    async def last(self, job_id: str) -> Event | None:
        """The newest event, decoded; None when there is no stream."""
        raw = await self._client.xrevrange(self._keys.stream(job_id), "+", "-", 1)
        return events.decode(raw[0][1][FIELD]) if raw else None

    async def read_one(self, job_id: str, id: EventId) -> Event:
        """The entry `id`, decoded. Raises IndexError when it is not there."""
        raw = await self._client.xrange(self._keys.stream(job_id), str(id), str(id), 1)
        return events.decode(raw[0][1][FIELD])

    async def last_id(self, job_id: str) -> EventId | None:
        """Id of the newest entry; None when there is no stream (not started, expired, or deleted)."""
        raw = await self._client.xrevrange(self._keys.stream(job_id), "+", "-", 1)
        return EventId.parse(raw[0][0]) if raw else None

    async def expire(self, job_id: str, ttl_ms: int) -> None:
        await self._client.pexpire(self._keys.stream(job_id), ttl_ms)

    async def delete(self, job_id: str) -> None:
        await self._client.delete(self._keys.stream(job_id))


def parse_entry(item: Any) -> Entry:
    """(id, payload) of one entry as redis-py hands it out."""
    return EventId.of_entry(item[0]), item[1][FIELD]
