"""A cursor into one topic."""

import asyncio
import time

from redis.exceptions import RedisError

from api.hub.topic import Entry, Topic
from common import events
from common.connections import is_outage
from common.errors import ServerFault
from common.eventlog import EventLog, Gap
from common.events import EventId

RETRY_SECONDS = 0.2
OUTAGE_SECONDS = 60.0
"""Readers are told when Redis stays away for longer than this."""


class StreamOver(Exception):
    """The job's record is terminal or gone and the log has nothing more, not even an end."""


class HubClosing(Exception):
    """The pod sends its readers away; they go on elsewhere from their cursors."""


class Reader:
    """Made by Hub.open. Not for concurrent use."""

    def __init__(self, topic: Topic, cursor: EventId, eventlog: EventLog) -> None:
        self.topic = topic
        self._cursor = cursor
        self._eventlog = eventlog
        self._told_waiting = 0

    async def next(self) -> list[Entry]:
        """The entries after the cursor, at least one; [] when the job's worker is gone and it waits (`waiting_again`).

        Raises Gap when entries are missing, StreamOver when no more will come, Unavailable when Redis stays away,
        ServerFault for a log that cannot be read, HubClosing when the pod shuts down.
        """
        topic = self.topic
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
        entries = self.topic.after(self._cursor)
        if entries is not None:
            return entries
        entries = await self._catch_up()
        if not entries and self.topic.after(self._cursor) is None:
            raise Gap(self._cursor, self.topic.tail)
        return entries

    async def _catch_up(self) -> list[Entry]:
        """From Redis; waits out an outage."""
        since = time.monotonic()
        while True:
            try:
                found = await self._eventlog.read_after(self.topic.job_id, self._cursor)
            except (RedisError, OSError) as error:
                if not is_outage(error):
                    raise unreadable() from error
                if time.monotonic() - since > OUTAGE_SECONDS:
                    raise
                await asyncio.sleep(RETRY_SECONDS)
                continue
            try:
                return [(id, events.decode(data)) for id, data in found]
            except ValueError as error:
                raise unreadable() from error

    def _advance(self, entries: list[Entry]) -> list[Entry]:
        self._cursor = entries[-1][0]
        return entries


def unreadable() -> ServerFault:
    return ServerFault("The job's log cannot be read.", code="log_lost")
