"""Following one job from a cursor to its end, whatever state it is in: the one way in which anything reads a job.

Tells batches of (id, event). Besides the log's own events there is `status`, without an id: the job waits again,
because its worker was lost or handed it over. The last event is always `end`, taken from the log; if the log has
expired or its end was lost, it is made from the record.
"""

import logging
from collections.abc import Sequence

from api.hub import Hub, Reader, StreamOver
from common.aggregate import as_deltas
from common.errors import BadRequest, Conflict, NotFound
from common.eventlog import EventLog, Gap
from common.events import END, START, Event, EventId
from common.jobs import JobStore
from common.records import JobRecord

log = logging.getLogger(__name__)

Said = Sequence[tuple[EventId | None, Event]]


class Follower:
    def __init__(self, hub: Hub, eventlog: EventLog, jobs: JobStore) -> None:
        self._hub = hub
        self._eventlog = eventlog
        self._jobs = jobs

    async def open(self, record: JobRecord, cursor: EventId = START) -> "Following":
        """What comes after `cursor`. `record` may be older than the log, not newer. The caller closes it.

        Raises BadRequest for a cursor ahead of the log, Conflict `stream_expired` when the log is gone.
        """
        if record.terminal or cursor.seq > 0:
            last = await self._last(record, cursor)
            if last is None and record.terminal:
                return Following(record, self._hub, self._jobs, told=_from_record(record))
            if record.terminal and last is not None and cursor >= last:
                end = await self._eventlog.read_one(record.id, last)
                told: Said = [(last, end if end["type"] == END else record.end_event())]
                return Following(record, self._hub, self._jobs, told=told)
        return Following(record, self._hub, self._jobs, self._hub.open(record.id, cursor), whole=cursor.seq == 0)

    async def _last(self, record: JobRecord, cursor: EventId) -> EventId | None:
        """Id of the log's last event if `cursor` can be followed; None for a job without a log."""
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


class Following:
    """One reader of one job. `told`: all that there is to say, when no reader is needed for it."""

    def __init__(
        self,
        record: JobRecord,
        hub: Hub,
        jobs: JobStore,
        reader: Reader | None = None,
        *,
        told: Said | None = None,
        whole: bool = False,
    ) -> None:
        self._record = record
        self._hub = hub
        self._jobs = jobs
        self._reader = reader
        self._told: Said = told or []
        self.from_record = told is not None and told[0][0] is None
        """Whether the log has expired, so that all there is to say is made from the record."""
        # Nothing was read yet, from the start on: an end without a log then brings the text, too.
        self._whole = whole

    async def next(self) -> Said:
        """The next batch, at least one event; [] when the end was told.

        Raises Conflict `stream_trimmed` when what follows is gone, Unavailable when Redis stays away, NotFound when
        the job is lost, and HubClosing when the pod sends its readers away.
        """
        if self._reader is None:
            told, self._told = self._told, []
            return told
        said: Said
        try:
            said = await self._reader.next()
        except Gap as gap:
            raise Conflict(
                "Events after the cursor are no longer in the stream; the whole result is at "
                f"/v1/jobs/{self._record.id}.",
                code="stream_trimmed",
            ) from gap
        except StreamOver:
            said = await self._lost_end()
        if not said:
            reason = "handed_over" if self._reader.topic.handed_over else "worker_lost"
            return [(None, {"type": "status", "status": "queued", "reason": reason})]
        self._whole = False
        if said[-1][1]["type"] == END:
            self.close()
        return said

    def close(self) -> None:
        """Closing again does nothing."""
        if self._reader:
            self._hub.close(self._reader)
            self._reader = None

    async def _lost_end(self) -> Said:
        """The record is terminal but the log has no end: say it from the record (resumable-stream#47)."""
        now = await self._jobs.get(self._record.id)
        if now is None:
            raise NotFound("The job is gone.", code="job_not_found")
        log.warning("job %s: its log has no end, told from the record", now.id)
        return _from_record(now) if self._whole else [(None, now.end_event())]


def _from_record(record: JobRecord) -> Said:
    """The whole text in one event and the end, for a stream that has expired."""
    whole: Said = [(None, delta) for delta in as_deltas(record.result or {}, record.kind)]
    return [*whole, (None, record.end_event())]
