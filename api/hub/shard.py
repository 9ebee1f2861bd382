"""One connection's XREAD over up to 256 topics.

The command has hundreds of arguments and is sent hundreds of times a second, so it is packed here by hand, from parts
that are kept, and its reply is taken as it comes: redis-py's own way costs more than all the rest of a token's path.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from redis.exceptions import RedisError, ResponseError

from api.hub.reader import OUTAGE_SECONDS, RETRY_SECONDS, unreadable
from api.hub.topic import Topic
from common.connections import Client, blocking_client, is_outage
from common.errors import Unavailable

log = logging.getLogger(__name__)

KEYS_PER_SHARD = 256
BLOCK_SECONDS = 5.0
ENTRIES_PER_READ = 64
"""Per key and reply: bounds what one reply can hold."""


class Shard:
    def __init__(self, url: str, commands: Client, pause_seconds: Callable[[], float]) -> None:
        self.topics: dict[bytes, Topic] = {}
        self.away_since: float | None = None
        self._client = blocking_client(url, BLOCK_SECONDS)
        self._commands = commands
        self._pause_seconds = pause_seconds
        self._client_id: int | None = None
        self._some = asyncio.Event()
        self._head: bytes | None = None
        """The packed command up to the ids; None when the topics have changed."""
        self._reading = False
        self._kicker: asyncio.Task[None] | None = None

    def add(self, topic: Topic) -> None:
        self.topics[topic.key] = topic
        self._head = None
        self._some.set()
        if self._reading and (self._kicker is None or self._kicker.done()):
            self._kicker = asyncio.create_task(self._kick(), name="hub kick")

    def remove(self, topic: Topic) -> None:
        self.topics.pop(topic.key, None)  # gone already if its log cannot be read
        self._head = None
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
                await asyncio.sleep(self._pause_seconds())

    async def close(self) -> None:
        if self._kicker:
            self._kicker.cancel()
        await self._client.aclose()

    async def _read(self) -> list[Any]:
        """XREAD's reply: [[key, [[id, [field, payload]], ...]], ...]."""
        connection = self._client.connection
        assert connection
        self._reading = True
        try:
            await connection.send_packed_command([self._packed()])
            reply: list[Any] | None = await connection.read_response()
        finally:
            self._reading = False
        return reply or []

    def _packed(self) -> bytes:
        if self._head is None:
            words = [b"XREAD", b"COUNT", b"%d" % ENTRIES_PER_READ, b"BLOCK", b"%d" % (BLOCK_SECONDS * 1000), b"STREAMS"]
            words += self.topics
            self._head = b"*%d\r\n" % (len(words) + len(self.topics)) + b"".join(map(_bulk, words))
        return self._head + b"".join([_bulk(b"%d-%d" % topic.tail) for topic in self.topics.values()])

    def _take(self, reply: list[Any]) -> None:
        for key, items in reply:
            # Gone when its last reader left while the read was under way.
            if topic := self.topics.get(key):
                topic.take(items)

    def _back(self) -> None:
        """Redis answers."""
        if self.away_since is not None:
            self.away_since = None
            for topic in self.topics.values():
                topic.failure = None

    async def _lost(self, error: Exception) -> None:
        if not is_outage(error):
            if await self._end_unreadable():
                return
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

    async def _end_unreadable(self) -> bool:
        """Whether it was single streams that made Redis refuse the whole read; their readers are told, and they go."""
        topics = list(self.topics.values())
        async with self._commands.pipeline(transaction=False) as each:
            for topic in topics:
                each.xread({topic.key: str(topic.tail)}, count=1)
            try:
                replies = await each.execute(raise_on_error=False)
            except (RedisError, OSError):
                return False
        found = False
        for topic, reply in zip(topics, replies, strict=True):
            refused = isinstance(reply, ResponseError) and not is_outage(reply)
            if refused and self.topics.get(topic.key) is topic:
                log.error("job %s: its log cannot be read: %s", topic.job_id, reply)
                found = True
                topic.failure = unreadable()
                topic.wake()
                self.remove(topic)
        return found

    async def _kick(self) -> None:
        """Unblock the read under way, until it has ended: the next one knows the new topic.

        A new topic must not wait for the silence of the others. Unblocking may come between "command sent" and "blocked
        in Redis" and then does nothing, so it is repeated.
        """
        while self._head is None and self._reading and self._client_id is not None:
            with suppress(RedisError, OSError):  # if Redis is away, the read ends by itself
                await self._commands.client_unblock(self._client_id)
            await asyncio.sleep(0.001)


def _bulk(word: bytes) -> bytes:
    return b"$%d\r\n%s\r\n" % (len(word), word)
