"""One multiplexed XREAD per pod feeds every local reader of every stream.

A *topic* is one stream that somebody here reads: the newest entries in a small ring. A *reader* is a cursor, not
a queue: it takes from the ring what comes after its cursor, and when it has fallen out of the ring, it catches up
from Redis. So a reader that does not read costs nothing, and many readers of one stream cost one key.

Topics are spread over shards of up to 256 keys with one connection each. A new topic must join an XREAD that may be
blocked for seconds, so the shard unblocks its own connection with CLIENT UNBLOCK.
"""

import asyncio
import logging
import time
from dataclasses import dataclass, field
from typing import Any

from redis.exceptions import RedisError

from common.connections import Client, blocking_client, is_outage
from common.errors import Unavailable
from common.eventlog import Entry, EventLog, Gap, parse_entry
from common.events import EventId
from common.jobs import JobStore
from common.keys import Keys
from common.tasks import cancel_all

log = logging.getLogger(__name__)

KEYS_PER_SHARD = 256
BLOCK_SECONDS = 5.0
ENTRIES_PER_READ = 64
"""Per key and reply: bounds what one reply can hold."""
RING_ENTRIES = 64
RING_BYTES = 65_536
RETRY_SECONDS = 0.2
SILENT_SECONDS = 1.0
"""A topic silent for this long has its job's record looked at."""
OUTAGE_SECONDS = 60.0
"""Readers are told when Redis stays away for longer than this."""


class StreamOver(Exception):
    """The job's record is terminal or gone and the log has nothing more, not even an end."""


class HubClosing(Exception):
    """The pod sends its readers away; they go on elsewhere from their cursors."""


@dataclass(eq=False, slots=True)
class Topic:
    """One stream's newest entries. `tail` is the id of the last entry read by the shard."""

    job_id: str
    key: str
    tail: EventId
    ring: list[Entry] = field(default_factory=list)
    ring_bytes: int = 0
    readers: int = 0
    moved_at: float = field(default_factory=time.monotonic)
    failure: Exception | None = None
    over: bool = False
    closing: bool = False
    waiting_again: int = 0
    """Attempt whose worker was lost while the job waits for the next one; 0: none."""
    _waiters: list["asyncio.Future[None]"] = field(default_factory=list)

    def extend(self, entries: list[Entry]) -> None:
        if entries[0][0].seq != self.tail.seq + 1:
            # Trimmed or lost entries. The ring starts anew after them, so that readers before the gap go to Redis and
            # are told there, and readers behind it never notice.
            self.ring, self.ring_bytes = [], 0
        self.ring += entries
        self.ring_bytes += sum(len(data) for _, data in entries)
        self.tail = entries[-1][0]
        self.moved_at = time.monotonic()
        self.waiting_again = 0
        self._trim()
        self.wake()

    def after(self, cursor: EventId) -> list[Entry] | None:
        """Entries of the ring after `cursor`; None when the ring cannot tell: then the log itself must be asked."""
        if not self.ring:
            return None
        # seq has no holes (see extend), so the place in the ring is a subtraction.
        start = cursor.seq + 1 - self.ring[0][0].seq
        if not 0 <= start <= len(self.ring):
            return None
        # A cursor that is not in this log (made up, or of entries that Redis has lost) must not pass for one that is.
        if start and self.ring[start - 1][0] != cursor:
            return None
        return self.ring[start:]

    async def wait(self) -> None:
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            await waiter
        finally:
            if waiter in self._waiters:
                self._waiters.remove(waiter)

    def wake(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _trim(self) -> None:
        # Cut in halves, so that the cost of cutting is spread over many entries.
        while len(self.ring) > 1 and (len(self.ring) > RING_ENTRIES or self.ring_bytes > RING_BYTES):
            cut = len(self.ring) // 2
            self.ring_bytes -= sum(len(data) for _, data in self.ring[:cut])
            del self.ring[:cut]


class Shard:
    """One connection's XREAD over its topics."""

    def __init__(self, url: str, commands: Client) -> None:
        self.topics: dict[bytes, Topic] = {}
        self.away_since: float | None = None
        self._client = blocking_client(url, BLOCK_SECONDS)
        self._commands = commands
        self._client_id: int | None = None
        self._some = asyncio.Event()
        # Version of the set of topics, and of the set that the read under way was sent with.
        self._wanted = 0
        self._sent = 0
        self._kicker: asyncio.Task[None] | None = None

    def add(self, topic: Topic) -> None:
        self.topics[topic.key.encode()] = topic
        self._wanted += 1
        self._some.set()
        if self._kicker is None or self._kicker.done():
            self._kicker = asyncio.create_task(self._kick(), name="hub kick")

    def remove(self, topic: Topic) -> None:
        del self.topics[topic.key.encode()]
        if not self.topics:
            self._some.clear()

    async def run(self) -> None:
        """Read for ever; survives every Redis error."""
        while True:
            await self._some.wait()
            try:
                if self._client_id is None:
                    self._client_id = await self._client.client_id()
                reply = await self._read()
            except (RedisError, OSError) as error:
                await self._lost(error)
            else:
                self._back()
                self._take(reply)

    async def close(self) -> None:
        if self._kicker:
            self._kicker.cancel()
        await self._client.aclose()

    async def _read(self) -> list[Any]:
        self._sent = self._wanted
        streams: dict[Any, Any] = {key: str(topic.tail) for key, topic in self.topics.items()}
        reply: list[Any] = await self._client.xread(streams, ENTRIES_PER_READ, int(BLOCK_SECONDS * 1000))
        return reply or []

    def _take(self, reply: list[Any]) -> None:
        for key, items in reply:
            # Gone when its last reader left while the read was under way.
            if topic := self.topics.get(key):
                topic.extend([parse_entry(item) for item in items])

    def _back(self) -> None:
        """Redis answers."""
        if self.away_since is not None:
            self.away_since = None
            for topic in self.topics.values():
                topic.failure = None

    async def _lost(self, error: Exception) -> None:
        if not is_outage(error):
            log.exception("hub: read failed", exc_info=error)
        elif self.away_since is None:
            log.warning("hub: Redis is away, %d streams wait: %s", len(self.topics), error)
        if self.away_since is None:
            self.away_since = time.monotonic()
        if time.monotonic() - self.away_since > OUTAGE_SECONDS:
            for topic in self.topics.values():
                topic.failure = Unavailable("Redis has been away for too long; resume later.", retry_after=5)
                topic.wake()
        self._client_id = None
        if self._client.connection:
            await self._client.connection.disconnect(nowait=True)
        await asyncio.sleep(RETRY_SECONDS)

    async def _kick(self) -> None:
        """Unblock the read under way until one has been sent that knows all topics.

        Unblocking may come between "set of topics taken" and "blocked in Redis" and then does nothing, so it is
        repeated until the versions agree.
        """
        # Without a connection no read is under way, and the next one knows all topics.
        while self._sent != self._wanted and self._client_id is not None:
            try:
                await self._commands.client_unblock(self._client_id)
            except (RedisError, OSError):
                return  # the read fails, too
            await asyncio.sleep(0.001)


class Reader:
    """A cursor into one topic. Not for concurrent use."""

    def __init__(self, topic: Topic, cursor: EventId, eventlog: EventLog) -> None:
        self._topic = topic
        self._cursor = cursor
        self._eventlog = eventlog
        self._told_waiting = 0

    async def next(self) -> list[Entry]:
        """The entries after the cursor, at least one; [] when the job has lost its worker and waits (`waiting`).

        Raises Gap when entries are missing, StreamOver when no more will come, Unavailable when Redis stays away,
        HubClosing when the pod shuts down.
        """
        topic = self._topic
        while True:
            if topic.closing:
                raise HubClosing
            if self._cursor < topic.tail:
                if entries := await self._behind():
                    return self._advance(entries)
                continue
            if topic.failure:
                raise topic.failure
            if topic.over:
                # The record was read after the last entries; those may still be on their way to the hub.
                if entries := await self._catch_up():
                    return self._advance(entries)
                raise StreamOver(topic.job_id)
            if topic.waiting_again != self._told_waiting:
                self._told_waiting = topic.waiting_again
                if topic.waiting_again:
                    return []
            await topic.wait()

    async def _behind(self) -> list[Entry]:
        entries = self._topic.after(self._cursor)
        if entries is not None:
            return entries
        entries = await self._catch_up()
        if not entries and self._topic.after(self._cursor) is None:
            raise Gap(self._cursor, self._topic.tail)
        return entries

    async def _catch_up(self) -> list[Entry]:
        """From Redis; waits out an outage."""
        since = time.monotonic()
        while True:
            try:
                return await self._eventlog.read_after(self._topic.job_id, self._cursor)
            except (RedisError, OSError) as error:
                if not is_outage(error) or time.monotonic() - since > OUTAGE_SECONDS:
                    raise
                await asyncio.sleep(RETRY_SECONDS)

    def _advance(self, entries: list[Entry]) -> list[Entry]:
        self._cursor = entries[-1][0]
        return entries


class Hub:
    """`open` a reader, `close` it; everything else is inside. `run` must be running."""

    def __init__(self, url: str, commands: Client, eventlog: EventLog, jobs: JobStore, keys: Keys) -> None:
        self._url = url
        self._commands = commands
        self._eventlog = eventlog
        self._jobs = jobs
        self._keys = keys
        self._topics: dict[str, tuple[Topic, Shard]] = {}
        self._shards: list[tuple[Shard, asyncio.Task[None]]] = []
        self._closing = False

    @property
    def streams(self) -> int:
        return len(self._topics)

    def open(self, job_id: str, cursor: EventId) -> Reader:
        known = self._topics.get(job_id)
        if known is None:
            topic = Topic(job_id, self._keys.stream(job_id), cursor, closing=self._closing)
            shard = self._shard_with_room()
            self._topics[job_id] = topic, shard
            shard.add(topic)
        else:
            topic = known[0]
        topic.readers += 1
        return Reader(topic, cursor, self._eventlog)

    def send_away(self) -> None:
        """End every reader with HubClosing, also those that are still to come."""
        self._closing = True
        for topic, _ in self._topics.values():
            topic.closing = True
            topic.wake()

    def close(self, reader: Reader) -> None:
        topic = reader._topic
        topic.readers -= 1
        if topic.readers == 0:
            _, shard = self._topics.pop(topic.job_id)
            shard.remove(topic)

    async def run(self) -> None:
        """Look after silent topics for ever: a job may have ended, or lost its worker, without saying so."""
        while True:
            await asyncio.sleep(SILENT_SECONDS)
            try:
                await self._check_silent()
            except Exception as error:
                if not is_outage(error):
                    log.exception("hub: check of silent streams failed")

    async def stop(self) -> None:
        await cancel_all([task for _, task in self._shards])
        for shard, _ in self._shards:
            await shard.close()

    async def _check_silent(self) -> None:
        before = time.monotonic() - SILENT_SECONDS
        silent = [topic for topic, _ in self._topics.values() if topic.moved_at < before and not topic.over]
        if not silent:
            return
        for topic, (state, attempt) in zip(
            silent, await self._jobs.states([topic.job_id for topic in silent]), strict=True
        ):
            if topic.moved_at >= before:
                continue  # it has spoken while the records were read
            if state == "queued":
                topic.waiting_again = attempt
            topic.over = state not in ("queued", "running")
            if topic.over or topic.waiting_again:
                topic.wake()

    def _shard_with_room(self) -> Shard:
        for shard, _ in self._shards:
            if len(shard.topics) < KEYS_PER_SHARD:
                return shard
        shard = Shard(self._url, self._commands)
        self._shards.append((shard, asyncio.create_task(shard.run(), name=f"hub shard {len(self._shards)}")))
        return shard
