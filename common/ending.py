"""Ending a job that nobody runs: cancelled while it waited, out of time, or out of attempts.

The caller has claimed the job (a script gave it the next attempt and a lease). The order is always the same:
the `end` event, then the record. A crash in between leaves a job whose lease runs out; whoever claims it next
finds the end in the log and only finishes the record.
"""

import logging
from dataclasses import dataclass
from typing import Any

from redis.exceptions import ResponseError

from common import errors, events
from common.aggregate import Aggregate
from common.connections import is_outage
from common.eventlog import AlreadyEnded, EventLog, Fenced, Gap
from common.events import Event
from common.jobs import JobStore, ToEnd
from common.records import result_fields
from common.settings import Settings

log = logging.getLogger(__name__)

ENDINGS: dict[str, errors.TailraceError] = {
    "worker_lost": errors.Unavailable("The job's workers were lost too often; it was given up.", code="worker_lost"),
    "log_lost": errors.ServerFault("A part of the answer was lost, it cannot be continued.", code="log_lost"),
    "queue_timeout": errors.TimedOut("The job waited in the queue for too long.", code="queue_timeout"),
    "deadline_exceeded": errors.TimedOut("The job's deadline passed.", code="deadline_exceeded"),
    "first_token_timeout": errors.TimedOut("The first token did not come in time.", code="first_token_timeout"),
    "stall_timeout": errors.TimedOut("The engine stalled between two tokens.", code="stall_timeout"),
}
"""Why a job may be ended besides its engine's own word. Any other `why` is the reason of a cancel."""


def ending(why: str, **parts: Any) -> Event:
    """The end event for a code of ENDINGS, or for a cancel with reason `why`."""
    if why in ENDINGS:
        return events.end("failed", error=ENDINGS[why].to_event(), **parts)
    error = errors.Conflict(f"The job was cancelled ({why}).", code="job_cancelled")
    return events.end("cancelled", error=error.to_event(), **parts)


@dataclass(frozen=True, slots=True)
class Ender:
    jobs: JobStore
    eventlog: EventLog
    settings: Settings
    caller: str

    async def end(self, job: ToEnd) -> None:
        """Write the end event of a job claimed for it, and finish its record."""
        try:
            await self.eventlog.append_attempt(job.id, job.attempt, ending(job.why))
        except AlreadyEnded:
            pass  # its worker died between the end event and the record
        except Fenced:
            log.warning("job %s: somebody else took it over before it could be ended", job.id)
            return
        except ResponseError as error:
            if is_outage(error):
                raise
            # Redis refuses its key for good (it holds something else): only the record can tell the end.
            log.error("job %s: its log cannot be written: %s", job.id, error)
            await self._finish(job.id, job.attempt, Aggregate().result(), ending("log_lost"))
            return
        await self.finish_from_log(job.id, job.attempt)

    async def finish_from_log(self, job_id: str, attempt: int) -> None:
        """Finish the record of a job whose log has ended, with the result that the log holds."""
        await self.eventlog.expire(job_id, self.settings.stream_ttl_ms)
        whole = await self._read(job_id)
        assert whole.end is not None
        await self._finish(job_id, attempt, whole.result(), whole.end)

    async def _finish(self, job_id: str, attempt: int, result: dict[str, Any], end: Event) -> None:
        if record := await self.jobs.get(job_id):
            fields = result_fields(result, end)
            await self.jobs.finish(job_id, record.model, self.caller, attempt, end["status"], fields)
            log.info("job %s: ended %s by %s", job_id, end["status"], self.caller)

    async def _read(self, job_id: str) -> Aggregate:
        whole = Aggregate()
        try:
            for _, event in await self.eventlog.read_all(job_id):
                whole.add(event)
        except Gap:
            # Trimmed below the operator's bound, or lost by Redis: what is left is not the answer, but it ends.
            log.error("job %s: its log has a gap, its result is lost", job_id)
            whole = Aggregate()
            if last := await self.eventlog.last(job_id):
                whole.add(last)
        return whole
