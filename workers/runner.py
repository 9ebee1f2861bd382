"""Running one claimed job: open its log, let the engine speak, write the end, finish the record.

Whatever happens in between, exactly one of these is done with the job: it ends (end event, then the record), it
is given back (queue), or it is left alone because another worker owns it.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from redis.exceptions import RedisError

from common import ending, events
from common.connections import is_outage
from common.errors import BadRequest, ServerFault
from common.eventlog import AlreadyEnded, EventLog, Fenced, Gap
from common.events import DELTA, START, Event
from common.jobs import Claim, JobStore, ToEnd
from common.records import result_fields
from common.settings import Settings
from workers.engines.base import Engine, EngineDied, EngineFailed, EngineRefused, GenerationRequest, Resume
from workers.running import ENGINE_HUNG, LOST, RunningJob
from workers.watch import ABANDONED, Watch
from workers.writer import StreamWriter

log = logging.getLogger(__name__)

T = TypeVar("T")

_CUT = ("length", "content_filter")
"""Finish reasons of an answer that is not whole."""

RETRY_SECONDS = 0.2
HANDOVER_SECONDS = 2.0
"""How long a shutdown waits for Redis to take a job's last tokens and the job itself."""


class Runner:
    def __init__(
        self,
        engine: Engine,
        jobs: JobStore,
        eventlog: EventLog,
        writer: StreamWriter,
        watch: Watch,
        ender: ending.Ender,
        settings: Settings,
    ) -> None:
        # By object: a lost job that this worker claims again runs beside its earlier attempt for a moment.
        self.running: set[RunningJob] = set()
        self.engine_died = asyncio.Event()
        self._engine = engine
        self._jobs = jobs
        self._eventlog = eventlog
        self._writer = writer
        self._watch = watch
        self._ender = ender
        self._settings = settings
        self._worker = ender.caller

    async def run(self, claim: Claim) -> None:
        """Returns when the job is off this worker's hands. Raises CancelledError, after handing the job back."""
        job = RunningJob(claim, self._settings)
        self.running.add(job)
        try:
            if reason := claim.cancel_reason or await _persistently(lambda: self._abandoned(job)):
                await _persistently(lambda: self._ender.end(ToEnd(job.id, job.attempt, reason)))
            else:
                await self._run(job)
        except Fenced as error:
            log.warning("job %s: attempt %d stops, another worker has it: %s", job.id, job.attempt, error)
        except asyncio.CancelledError:
            await self._hand_over(job)
            raise
        finally:
            self.running.discard(job)

    def silent_seconds(self) -> float:
        """How long the engine has said nothing for any running job; 0 when none runs."""
        newest = max((job.moved_at for job in self.running), default=None)
        return 0.0 if newest is None else time.monotonic() - newest

    def give_all_back(self) -> None:
        """The engine hangs: stop waiting for it, so that other workers go on with its jobs."""
        self.engine_died.set()
        for job in list(self.running):
            job.stop(ENGINE_HUNG)

    async def _abandoned(self, job: RunningJob) -> str | None:
        """A reason not to start the job: its reader's pod died while it waited, so nobody could cancel it."""
        enough = job.grace_seconds + self._settings.presence_ttl_seconds
        if not job.needs_reader or time.time() - job.record.created_at < enough:
            return None
        # Twice, with time for a living pod to say so again: a restart of Redis lets presence lapse, too.
        if await self._watch.has_reader(job.id):
            return None
        await asyncio.sleep(self._settings.presence_ttl_seconds)
        return None if await self._watch.has_reader(job.id) else ABANDONED

    async def _run(self, job: RunningJob) -> None:
        try:
            resume = await _persistently(lambda: self._open_log(job))
        except AlreadyEnded:
            await _persistently(lambda: self._ender.finish_from_log(job.id, job.attempt))
            return
        except Gap as gap:
            log.error("job %s: attempt %d cannot continue: %s", job.id, job.attempt, gap)
            await self._end(job, ending.ending("log_lost"))
            return
        self._watch.jobs.add(job)
        try:
            end = await self._generate(job, resume)
        except EngineDied as error:
            await self._give_back(job, error)
            return
        finally:
            self._watch.jobs.discard(job)
        if job.stopped == ENGINE_HUNG:
            await self._give_back(job, EngineDied("no request of it makes progress"))
        elif job.stopped == LOST:
            log.warning("job %s: attempt %d stops, its lease was lost", job.id, job.attempt)
        else:
            await self._end(job, end)

    async def _open_log(self, job: RunningJob) -> Resume | None:
        """Announce the attempt in the log; then, and only then, read what earlier attempts left.

        Raises Fenced, AlreadyEnded, or Gap when a part of the log is lost (the log is open all the same).
        """
        request = _generation_request(job)
        job.continuable = self._engine.resumable(request)
        first = events.started(job.attempt, self._worker, continuable=job.continuable)
        if job.attempt == 1:
            job.log = self._writer.open(job.id, START._replace(attempt=1), self._most_tokens(request))
            job.log.append(first)
            return None
        last = await self._eventlog.append_attempt(job.id, job.attempt, first)
        job.log = self._writer.open(job.id, last, self._most_tokens(request))
        for _, event in await self._eventlog.read_all(job.id):
            job.heard(event)
        log.info("job %s: attempt %d continues at %s", job.id, job.attempt, last)
        return _resume(job)

    def _most_tokens(self, request: GenerationRequest) -> int | None:
        body = request.body
        each = body.get("max_completion_tokens") or body.get("max_tokens") or self._engine.max_model_len
        prompt = body.get("prompt")
        prompts = len(prompt) if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int) else 1
        return each * int(body.get("n") or 1) * prompts if each else None

    async def _generate(self, job: RunningJob, resume: Resume | None) -> Event:
        """Let the engine speak into the log. Returns the end event that follows."""
        if resume and not job.continuable:
            return ending.ending("worker_lost", **_so_far(job))
        while (end := await self._generate_on_course(job, resume)) is None:
            record = await _persistently(lambda: self._jobs.get(job.id))
            job.change_course(record or job.record)
            log.info("job %s: continues under new parameters after %d tokens", job.id, len(job.token_ids))
            resume = _resume(job)
        return end

    async def _generate_on_course(self, job: RunningJob, resume: Resume | None) -> Event | None:
        """As `_generate`; None when the job's parameters have been changed meanwhile."""
        work = asyncio.create_task(self._pump(job, _generation_request(job), resume), name=f"pump {job.id}")
        try:
            await job.pump(work)
        except EngineRefused as refused:
            return events.end("failed", error=_refusal(refused), **_so_far(job))
        except EngineFailed as failed:
            log.error("job %s: the engine failed it: %s", job.id, failed)
            error = ServerFault(str(failed) or "The engine failed.", code="engine_error")
            return events.end("failed", error=error.to_event(), **_so_far(job))
        if job.stopped:
            return ending.ending(job.stopped, **_so_far(job))
        if not job.done:
            return None
        status = "incomplete" if job.whole.finish_reason in _CUT else "completed"
        return events.end(status, **_so_far(job))

    async def _pump(self, job: RunningJob, request: GenerationRequest, resume: Resume | None) -> None:
        assert job.log is not None
        # aclosing: leaving in any way closes the generator, and that is what aborts the request in the engine.
        async with contextlib.aclosing(self._engine.generate(request, resume)) as spoken:
            async for event in spoken:
                job.said(event)
                if event["type"] == DELTA:
                    job.log.append(event)
                    if job.log.full:
                        job.held_back = True
                        await job.log.room()
                        job.held_back = False

    async def _end(self, job: RunningJob, end: Event) -> None:
        """The end event, then the record: in this order, so that no reader sees a terminal job without an end."""
        assert job.log is not None
        job.log.append(end)
        await job.log.drained()
        # Only now, when the end is there: a fenced attempt must not give another's stream a time to live.
        await _persistently(lambda: self._eventlog.expire(job.id, self._settings.stream_ttl_ms))
        # The usage of the end: it counts what was said, also when the engine could not say it any more.
        result = {**job.whole.result(), "usage": end.get("usage")}
        fields = result_fields(result, end, job.first_token_at)
        held = await _persistently(
            lambda: self._jobs.finish(job.id, job.record.model, self._worker, job.attempt, end["status"], fields)
        )
        outcome = end["status"] if held else "ended, but another worker finished it"
        log.info("job %s: attempt %d %s %s", job.id, job.attempt, outcome, job.stopped or "")

    async def _give_back(self, job: RunningJob, error: EngineDied) -> None:
        """The engine died under the job: another worker goes on at once, unless the job kills every engine."""
        job.engine_lost = True  # before anything wakes up that may cut this short
        self.engine_died.set()
        log.error("job %s: attempt %d lost its engine: %s", job.id, job.attempt, error)
        if await self._release(job) == "exhausted":
            await self._end(job, ending.ending("worker_lost", **_so_far(job)))

    async def _hand_over(self, job: RunningJob) -> None:
        """A shutdown cut the job short: what was said goes into the log, the job to the front of the queue."""
        if job.log:
            with contextlib.suppress(Fenced, TimeoutError, RedisError):
                async with asyncio.timeout(HANDOVER_SECONDS):
                    await job.log.drained()
        with contextlib.suppress(TimeoutError, RedisError, OSError):
            async with asyncio.timeout(HANDOVER_SECONDS):
                outcome = await self._release(job)
                log.info("job %s: attempt %d handed over (%s)", job.id, job.attempt, outcome)

    async def _release(self, job: RunningJob) -> str:
        loss = job.engine_lost or not self._engine.healthy()
        return await self._jobs.release(job.id, job.record.model, self._worker, job.attempt, loss=loss)


async def _persistently(call: Callable[[], Awaitable[T]]) -> T:
    """The result of `call`, tried until Redis is there."""
    while True:
        try:
            return await call()
        except (RedisError, OSError) as error:
            if not is_outage(error):
                raise
            await asyncio.sleep(RETRY_SECONDS)


def _generation_request(job: RunningJob) -> GenerationRequest:
    record = job.record
    return GenerationRequest(record.id, record.kind, record.body, record.options.priority)


def _resume(job: RunningJob) -> Resume | None:
    """None when nothing was delivered: then the job simply starts anew."""
    if job.whole.empty:
        return None
    return Resume(job.token_ids, job.whole.delivered())


def _so_far(job: RunningJob) -> dict[str, Any]:
    return {"finish_reason": job.whole.finish_reason, "usage": job.usage(), "timings": job.timings()}


def _refusal(refused: EngineRefused) -> dict[str, Any]:
    kind = BadRequest.type if refused.status < 500 else ServerFault.type
    return {
        "message": refused.message,
        "type": kind,
        "param": refused.param,
        "code": refused.code or BadRequest.default_code,
        "status": refused.status,
    }
