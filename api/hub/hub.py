"""The room where readers and topics meet."""

import asyncio
import logging
import time

from api.hub.reader import Reader
from api.hub.shard import KEYS_PER_SHARD, Shard
from api.hub.topic import Topic
from common.connections import Client, is_outage
from common.eventlog import EventLog
from common.events import EventId
from common.jobs import JobStore
from common.keys import Keys
from common.tasks import cancel_all, spawn

log = logging.getLogger(__name__)

SILENT_SECONDS = 1.0
"""A topic silent for this long has its job's record looked at."""
PAUSE_SECONDS_PER_STREAM = 10e-6
MAX_PAUSE_SECONDS = 0.05


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
        topic = reader.topic
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
        standings = await self._jobs.standings([topic.job_id for topic in silent])
        for topic, job in zip(silent, standings, strict=True):
            if topic.moved_at >= before:
                continue  # it has spoken while the records were read
            if job.state == "queued":
                topic.waiting_again = job.attempt
                topic.handed_over = job.handed_over
            topic.over = job.state not in ("queued", "running")
            if topic.over or topic.waiting_again:
                topic.wake()

    def _shard_with_room(self) -> Shard:
        for shard, _ in self._shards:
            if len(shard.topics) < KEYS_PER_SHARD:
                return shard
        shard = Shard(self._url, self._commands, self._pause_seconds)
        self._shards.append((shard, spawn(f"hub shard {len(self._shards)}", shard.run())))
        return shard

    def _pause_seconds(self) -> float:
        """How long a shard gathers entries between two reads.

        A read costs in proportion to its keys, however few have news, and the first entry of an engine's step ends the
        read that waits for it; what follows within the pause comes in one reply, and leaves in one send.
        """
        return min(self.streams * PAUSE_SECONDS_PER_STREAM, MAX_PAUSE_SECONDS)
