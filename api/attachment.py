"""One reader's stay with a job: counted, present in Redis while it lasts, and following the job's events."""

import asyncio
import time

from redis.exceptions import RedisError

from api.follow import Following, Said
from api.hub import HubClosing
from api.pod import Pod
from common.connections import translated
from common.events import DELTA, END, START, EventId
from common.records import JobRecord


class Attachment:
    """One reader of one job in this pod, from before its first byte to after its last."""

    def __init__(self, pod: Pod, record: JobRecord, cursor: EventId = START) -> None:
        self.record = record
        self.ended = False
        """Whether the end was told."""
        self.from_record = False
        """Whether the job's log had expired when this was opened."""
        self._pod = pod
        self._cursor = cursor
        self._following: Following | None = None
        self._first: asyncio.Task[Said] | None = None
        self._token_seen = cursor != START
        self._open = False

    async def open(self) -> None:
        """Raises what Follower.open raises, and Unavailable; then it is closed again. Else `close` is due."""
        self._open = True
        self._pod.stream_opened()
        try:
            with translated():
                await self._pod.presence.attach(self.record)
                self._following = await self._pod.follower.open(self.record, self._cursor)
                self.from_record = self._following.from_record
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Leave the job; what this means for it is up to its `on_disconnect`. Closing again does nothing."""
        if not self._open:
            return
        self._open = False
        if self._first and not self._first.cancel() and not self._first.cancelled():
            self._first.exception()  # nobody is left to hear of it
        if self._following:
            self._following.close()
        self._pod.stream_closed()
        self._pod.presence.detach(self.record, ended=self.ended, closing=self._pod.closing)

    def begin(self) -> "asyncio.Task[Said]":
        """Reads on until the first token or the end: one batch, [] when the pod closes before. `next` tells it again.

        Raises what `next` raises.
        """
        self._first = asyncio.create_task(self._until_first_token(), name=f"first of {self.record.id}")
        return self._first

    async def next(self) -> Said:
        """The next batch of the job's events; [] after the end, and when the pod sends its readers away.

        Raises TailraceError.
        """
        if self._first:
            first, self._first = self._first, None
            return await first
        return await self._next()

    async def _next(self) -> Said:
        assert self._following
        try:
            said = await self._following.next()
        except HubClosing:
            return []
        except (RedisError, OSError):
            with translated():
                raise
        self._pod.metrics.events_sent += len(said)
        if said:
            self.ended = said[-1][1]["type"] == END
        if not self._token_seen:
            self._note_first_token(said)
        return said

    async def _until_first_token(self) -> Said:
        so_far: list[tuple[EventId | None, dict[str, object]]] = []
        while said := await self._next():
            so_far += said
            if any(event["type"] in (DELTA, END) for _, event in said):
                break
        return so_far

    def _note_first_token(self, said: Said) -> None:
        if any(event["type"] == DELTA for _, event in said):
            self._token_seen = True
            self._pod.metrics.ttft.observe(max(0.0, time.time() - self.record.created_at))
