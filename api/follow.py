"""Following one job from a cursor to its end, whatever state it is in: the one way in which anything reads a job.

Yields batches of (id, event). Besides the log's own events there is `status`, without an id: the job waits
again, because it lost its worker. The last event is always `end`, taken from the log; if the log has expired
or its end was lost, it is made from the record.
"""

import logging
from collections.abc import AsyncGenerator

from api.hub import Hub, Reader, StreamOver
from common import events
from common.aggregate import as_deltas
from common.errors import BadRequest, Conflict, NotFound
from common.eventlog import EventLog, Gap
from common.events import END, START, Event, EventId
from common.jobs import JobStore
from common.records import JobRecord

log = logging.getLogger(__name__)

Said = list[tuple[EventId | None, Event]]


class Follower:
    def __init__(self, hub: Hub, eventlog: EventLog, jobs: JobStore) -> None:
        self._hub = hub
        self._eventlog = eventlog
        self._jobs = jobs

    async def check(self, record: JobRecord, cursor: EventId) -> EventId | None:
        """Id of the log's last event if `cursor` can be followed; None for a job without a log.

        Raises BadRequest for a cursor ahead of the log, Conflict `stream_expired` when the log is gone.
        """
        last = await self._eventlog.last_id(record.id)
        if last is None and record.terminal and cursor.seq > 0:
            # Whoever has a part would append the whole to it.
            raise Conflict(
                f"The stream has expired and cannot be resumed; the whole result is at /v1/jobs/{record.id}.",
                code="stream_expired",
            )
        if not record.terminal and cursor.seq > 0 and (last is None or cursor > last):
            raise BadRequest("The cursor is ahead of the job's log.", code="invalid_cursor", param="after")
        return last

    async def follow(self, record: JobRecord, cursor: EventId = START) -> AsyncGenerator[Said]:
        """Everything after `cursor`. `record` may be older than the log, not newer.

        Raises what `check` raises, Conflict `stream_trimmed` when what follows the cursor is gone, Unavailable
        when Redis stays away, NotFound when the job is lost, and HubClosing when the pod sends its readers away.
        """
        if record.terminal or cursor.seq > 0:
            last = await self.check(record, cursor)
            if last is None and record.terminal:
                yield _from_record(record)
                return
            if record.terminal and last is not None and cursor >= last:
                end = await self._eventlog.read_one(record.id, last)
                yield [(last, end if end["type"] == END else _end_of(record))]
                return
        reader = self._hub.open(record.id, cursor)
        try:
            async for said in self._read(record, reader, cursor):
                yield said
        finally:
            self._hub.close(reader)

    async def _read(self, record: JobRecord, reader: Reader, cursor: EventId) -> AsyncGenerator[Said]:
        untouched = cursor.seq == 0
        while True:
            try:
                entries = await reader.next()
            except Gap as gap:
                raise Conflict(
                    "Events after the cursor are no longer in the stream; the whole result is at "
                    f"/v1/jobs/{record.id}.",
                    code="stream_trimmed",
                ) from gap
            except StreamOver:
                yield await self._lost_end(record, whole=untouched)
                return
            if not entries:
                yield [(None, {"type": "status", "status": "queued", "reason": "worker_lost"})]
                continue
            untouched = False
            said: Said = [(id, events.decode(data)) for id, data in entries]
            yield said
            if said[-1][1]["type"] == END:
                return

    async def _lost_end(self, record: JobRecord, *, whole: bool) -> Said:
        """The record is terminal but the log has no end: say it from the record (resumable-stream#47).

        `whole`: with the text, because the stream expired before the reader had anything of it.
        """
        now = await self._jobs.get(record.id)
        if now is None:
            raise NotFound("The job is gone.", code="job_not_found")
        log.warning("job %s: its log has no end, told from the record", record.id)
        return _from_record(now) if whole else [(None, _end_of(now))]


def _from_record(record: JobRecord) -> Said:
    """The whole text in one event and the end, for a stream that has expired."""
    whole: Said = [(None, delta) for delta in as_deltas(record.result or {}, record.kind)]
    return [*whole, (None, _end_of(record))]


def _end_of(record: JobRecord) -> Event:
    return events.end(record.state, finish_reason=record.finish_reason, usage=record.usage, error=record.error)
