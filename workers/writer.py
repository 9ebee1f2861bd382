"""ONE writer per process turns what jobs say into stream entries.

Jobs hand over deltas without waiting. Each flush sends one pipeline with one XADD per job that has something
new; while it is under way, deltas gather and merge. So a slow Redis makes entries larger, not more numerous, and
a busy worker pays one round trip for all its jobs together (awaiting each token's publish added 45 s to an
answer: scale-agentex-python#333).

Only the oldest entry of a job is ever under way: were two, Redis could refuse the first for lack of memory
and take the second, and the refused one would be lost behind a higher id.
"""

import asyncio
import logging
from copy import copy
from typing import Any

from redis.exceptions import RedisError, ResponseError

from common import events
from common.connections import is_outage
from common.eventlog import Fenced
from common.events import DELTA, Event, EventId
from common.keys import Keys
from common.settings import Settings
from workers.pipe import Command, Pipe

log = logging.getLogger(__name__)

FIRST_BACKOFF_SECONDS = 0.05
LAST_BACKOFF_SECONDS = 1.0
FLUSH_JOBS = 100
"""Per flush: so that Redis and the pods work on the first part of an engine's step while the rest is packed."""
RESERVED_SHARE = 16
"""One in so many entries of the budget is kept for the end and for takeovers' first entries."""


class Budget:
    """Lossless bound: how many tokens the next entry must hold so that the longest answer still fits."""

    def __init__(self, maxlen: int, max_tokens: int | None) -> None:
        self._limit = maxlen - max(2, maxlen // RESERVED_SHARE)
        self._free_until = maxlen // 2
        self._max_tokens = max_tokens

    def least_tokens(self, entries: int, tokens: int) -> int:
        """`entries` and `tokens` are what the log holds already."""
        if entries < self._free_until:
            return 1
        left = (self._max_tokens or 0) - tokens
        if left <= 0:
            # Without a known bound, or beyond it, assume as much again as there is: entries then grow with the
            # answer, so that the budget is never used up.
            left = max(1, tokens)
        return -(-left // max(1, self._limit - entries))


class _Pending:
    """One event that waits for a flush, with what was merged into it."""

    __slots__ = ("_copied", "event", "size", "tokens")

    def __init__(self, event: Event, size: int) -> None:
        self.event = event
        self.tokens = events.token_count(event)
        self.size = size
        self._copied = False

    def merge(self, event: Event, size: int) -> bool:
        """Take `event` in, if that changes nothing for readers."""
        if event["type"] != DELTA or not events.mergeable(self.event, event):
            return False
        if not self._copied:
            # The caller keeps the original. Most events are sent alone, and need no copy.
            self.event = {name: copy(value) for name, value in self.event.items()}
            self._copied = True
        events.merge_delta(self.event, event)
        self.tokens += events.token_count(event)
        self.size += size
        return True


class JobLog:
    """One attempt's end of a job's log. `append` never waits; `room` does, when too much is held back."""

    def __init__(self, writer: "StreamWriter", job_id: str, key: str, last: EventId, budget: Budget) -> None:
        self.job_id = job_id
        self.key = key
        self.attempt = last.attempt
        self.seq = last.seq
        self.tokens = 0
        self.flushing: Command | None = None
        self.failure: Exception | None = None
        self.ended = False
        self._hurry = False
        self._writer = writer
        self._budget = budget
        self._pending: list[_Pending] = []
        self._held = 0
        self._moved: asyncio.Future[None] | None = None

    def append(self, event: Event) -> None:
        """Add an event. Raises what broke the log: Fenced, or Redis's own refusal."""
        if self.failure:
            raise self.failure
        size = _size(event)
        self._held += size
        if not (self._pending and self._merge(event, size)):
            self._pending.append(_Pending(event, size))
        self.ended = event["type"] == events.END
        self._writer.wake(self)

    def _merge(self, event: Event, size: int) -> bool:
        # Only the newest pending event of the same choice may grow; choices are independent of each other.
        same_choice = (p for p in reversed(self._pending) if p.event.get("index") == event.get("index"))
        newest = next(same_choice, None)
        return newest is not None and newest.merge(event, size)

    @property
    def full(self) -> bool:
        """Whether more than the allowed bytes are held back: the engine must wait instead of our memory."""
        return self._held > self._writer.pending_bytes_per_job

    async def room(self) -> None:
        """Wait until the log is no longer full. Raises as `append` does."""
        while self.full and not self.failure:
            await self._wait()
        if self.failure:
            raise self.failure

    async def drained(self) -> None:
        """Wait until everything appended is in Redis, however small its entries. Raises as `append` does."""
        self._hurry = True
        self._writer.wake(self)
        while (self._pending or self.flushing) and not self.failure:
            await self._wait()
        self._hurry = False
        if self.failure:
            raise self.failure

    # The writer's side.

    def due(self) -> bool:
        """Whether there is an entry to send now."""
        if self.flushing:
            return True
        if not self._pending or self.failure:
            return False
        if self.ended or self._hurry or self.full:
            return True
        least = self._budget.least_tokens(self.seq, self.tokens)
        # Nothing waits for company while the budget is free: the first token would come only with the second.
        return least == 1 or sum(p.tokens for p in self._pending) >= least * len(self._pending)

    def next_command(self) -> Command:
        """The XADD to send: of the entry under way again, or of the oldest pending event."""
        if self.flushing is None:
            self.flushing = self._command(self._pending.pop(0))
        return self.flushing

    def _command(self, oldest: _Pending) -> Command:
        self.seq += 1
        self.tokens += oldest.tokens
        self._held -= oldest.size
        id = f"{self.attempt}-{self.seq}"
        # The first entry of a job creates its stream. No later one may: a stalled worker that wakes up after the
        # stream has expired would leave a stream behind that nobody ever expires.
        create = () if id == "1-1" else ("NOMKSTREAM",)
        # Never needed if the budget is right, and until then three words less for Redis to read and to log.
        bound = ("MAXLEN", "~", self._writer.maxlen) if self.seq > self._writer.maxlen else ()
        return ("XADD", self.key, *create, *bound, id, "e", events.encode(oldest.event))

    def acknowledged(self) -> None:
        self.flushing = None
        self._notify()

    def fail(self, error: Exception) -> None:
        self.failure = error
        self.flushing = None
        self._pending.clear()
        self._held = 0
        self._notify()

    async def _wait(self) -> None:
        self._moved = asyncio.get_running_loop().create_future()
        await self._moved

    def _notify(self) -> None:
        if self._moved and not self._moved.done():
            self._moved.set_result(None)


class StreamWriter:
    """Owns every open JobLog of the process. `run` must be running while logs are open."""

    def __init__(self, pipe: Pipe, keys: Keys, settings: Settings) -> None:
        self.pending_bytes_per_job = settings.pending_bytes_per_job
        self.outages = 0
        self._pipe = pipe
        self._keys = keys
        self.maxlen = settings.stream_maxlen
        # A dict, not a set: jobs are served in the order in which they asked.
        self._dirty: dict[JobLog, None] = {}
        self._wake = asyncio.Event()

    def open(self, job_id: str, last: EventId, max_tokens: int | None) -> JobLog:
        """The log of `job_id` for the attempt `last.attempt`, whose newest entry so far is `last`."""
        return JobLog(self, job_id, self._keys.stream(job_id), last, Budget(self.maxlen, max_tokens))

    def wake(self, job_log: JobLog) -> None:
        self._dirty[job_log] = None
        self._wake.set()

    async def run(self) -> None:
        """Flush for ever. Survives every Redis error: entries wait, and are sent again with the same ids."""
        backoff = FIRST_BACKOFF_SECONDS
        while True:
            await self._wake.wait()
            self._wake.clear()
            while due := [job_log for job_log in self._dirty if job_log.due()]:
                batch, rest = due[:FLUSH_JOBS], due[FLUSH_JOBS:]
                # Those that wait longest come first. Whoever has news adds itself again, so that this holds no job
                # that is long over.
                self._dirty = dict.fromkeys(rest + batch)
                outage = await self._flush(batch)
                if outage is None:
                    backoff = FIRST_BACKOFF_SECONDS
                else:
                    self.outages += 1
                    log.warning("writer: Redis is away, %d jobs wait: %s", len(batch), outage)
                    await asyncio.sleep(backoff)
                    backoff = min(backoff * 2, LAST_BACKOFF_SECONDS)
            self._dirty.clear()

    async def _flush(self, batch: list[JobLog]) -> Exception | None:
        """Send one entry for each of `batch`. Returns the error when Redis is away; nothing is lost then."""
        sent: list[JobLog] = []
        commands: list[Command] = []
        for job_log in batch:
            try:
                commands.append(job_log.next_command())
                sent.append(job_log)
            except (ValueError, TypeError, OverflowError) as error:
                # One answer that cannot be packed must not stop all the others.
                log.error("job %s: its event cannot be encoded: %s", job_log.job_id, error)
                job_log.fail(error)
        try:
            replies = await self._pipe.exchange(commands)
        except (RedisError, OSError) as error:
            return error
        return await self._settle(sent, replies)

    async def _settle(self, batch: list[JobLog], replies: list[Any]) -> Exception | None:
        outage: Exception | None = None
        refused: list[JobLog] = []
        for job_log, reply in zip(batch, replies, strict=True):
            if isinstance(reply, bytes):
                job_log.acknowledged()
            elif reply is None:
                job_log.fail(Fenced(f"{job_log.job_id}: its stream is gone"))
            elif isinstance(reply, ResponseError) and "equal or smaller" in str(reply):
                refused.append(job_log)
            elif is_outage(reply):
                outage = reply
            else:
                log.error("job %s: its log cannot be written: %s", job_log.job_id, reply)
                job_log.fail(reply)
        if refused:
            try:
                await self._settle_refused(refused)
            except (RedisError, OSError) as error:
                outage = error
        return outage

    async def _settle_refused(self, refused: list[JobLog]) -> None:
        """Redis has this id or a higher one: a resend whose first reply was lost, or a newer attempt."""
        commands: list[Command] = [("XREVRANGE", job_log.key, "+", "-", "COUNT", 1) for job_log in refused]
        for job_log, newest in zip(refused, await self._pipe.exchange(commands), strict=True):
            if isinstance(newest, ResponseError):
                raise newest
            last = EventId.parse(newest[0][0]) if newest else None
            if last == (job_log.attempt, job_log.seq):
                job_log.acknowledged()
            else:
                job_log.fail(Fenced(f"{job_log.job_id}: attempt {job_log.attempt} is fenced by {last}"))


def _size(event: Event) -> int:
    """Roughly the bytes that an event holds in memory and in Redis; exact enough for a bound."""
    size = len(event.get("content") or "") + len(event.get("reasoning") or "")
    size += 4 * len(event.get("token_ids") or ())
    for piece in event.get("tool_calls") or ():
        size += 64 + len((piece.get("function") or {}).get("arguments") or "")
    if logprobs := event.get("logprobs"):
        size += 256 * max((len(values) for values in logprobs.values() if values), default=0)
    return size
