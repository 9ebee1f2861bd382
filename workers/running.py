"""One job while this worker runs it: when it moved last, what has been said, and why it was stopped."""

import asyncio
import time

from common.aggregate import Aggregate
from common.events import DELTA, Event, token_count
from common.jobs import Claim
from common.records import JobRecord
from common.settings import Settings
from workers.writer import JobLog

LOST = "lost"
"""Stop reason of a job that is another worker's now: write nothing more."""
ENGINE_HUNG = "engine_hung"
"""Stop reason of a job whose engine makes no progress with any request: give it back."""


class RunningJob:
    """Satisfies workers.watch.Stoppable."""

    def __init__(self, claim: Claim, settings: Settings) -> None:
        self.record: JobRecord = claim.record
        self.attempt = claim.attempt
        self.whole = Aggregate()
        self.log: JobLog | None = None
        self.first_token_at = self.record.first_token_at
        self.done = False
        self.stopped: str | None = None
        self.engine_lost = False
        """Its engine died under it: that is counted when it is given back, whoever does it."""
        self.continuable = False
        self.held_back = False
        """The log takes no more for now, so the engine's silence is ours."""
        self._off_course = False
        self.reader_seen_at = time.monotonic()
        self._pump: asyncio.Task[None] | None = None
        self._claimed_at = self._moved_at = time.monotonic()
        self.token_ids: list[int] = []
        self._spoke = False
        self._tokens = 0
        options = self.record.options
        self._ttft_timeout = _choose(options.ttft_timeout_seconds, settings.ttft_timeout_seconds)
        self._stall_timeout = _choose(options.stall_timeout_seconds, settings.stall_timeout_seconds)

    @property
    def id(self) -> str:
        return self.record.id

    @property
    def needs_reader(self) -> bool:
        return self.record.options.on_disconnect == "cancel"

    @property
    def grace_seconds(self) -> float:
        return self.record.options.grace_seconds

    async def pump(self, work: "asyncio.Task[None]") -> None:
        """Run `work`, the part that `stop` may interrupt. Returns early when stopped; errors of `work` are raised."""
        self._pump = work
        try:
            await work
            self.done = True
        except asyncio.CancelledError:
            # Ours (stop) ends here; somebody else's (shutdown) goes on up, after the work has let go of the engine.
            wanted = self.stopped is not None or self._off_course
            if not wanted or (task := asyncio.current_task()) is None or task.cancelling():
                work.cancel()
                await asyncio.gather(work, return_exceptions=True)
                raise

    @property
    def moved_at(self) -> float:
        """When the engine last said something for it, or it was claimed, or could not because of us: monotonic."""
        return time.monotonic() if self.held_back else self._moved_at

    def stop(self, why: str) -> None:
        """Stop the work. Only the first reason counts; without effect once the engine is done."""
        if self.stopped is None and self._pump is not None and not self._pump.done():
            self.stopped = why
            self._pump.cancel()

    def steer(self, version: int) -> None:
        """Interrupt the work, so that it goes on under the parameters that the record has by now."""
        news = version > self.record.steered and not self._off_course and self.continuable
        if news and self._pump is not None and not self._pump.done():
            self._off_course = True
            self._pump.cancel()

    def change_course(self, record: JobRecord) -> None:
        """Go on with the parameters of `record`."""
        self.record = record
        self._off_course = False

    def said(self, event: Event) -> None:
        """Note one event of the engine."""
        self.heard(event)
        if event["type"] == DELTA:
            self._moved_at = time.monotonic()
            self._spoke = True
            if self.first_token_at is None:
                self.first_token_at = time.time()

    def heard(self, event: Event) -> None:
        """Note one event that is in the log, from this attempt or an earlier one."""
        self.whole.add(event)
        if event["type"] == DELTA:
            self.token_ids += event.get("token_ids") or ()
            self._tokens += token_count(event)

    def overdue(self, now: float) -> str | None:
        deadline = self.record.deadline_at
        if deadline and time.time() > deadline:
            return "deadline_exceeded"
        if not self._spoke:
            return "first_token_timeout" if 0 < self._ttft_timeout < now - self._claimed_at else None
        return "stall_timeout" if 0 < self._stall_timeout < now - self.moved_at else None

    def usage(self) -> Event | None:
        """The engine's usage; for an answer cut short, its prompt's size and the tokens counted here."""
        usage = self.whole.usage
        if usage is None or self.done:
            return usage
        prompt = usage["prompt_tokens"]
        return {**usage, "completion_tokens": self._tokens, "total_tokens": prompt + self._tokens}

    def timings(self) -> dict[str, int]:
        """Milliseconds from submit to claim, to first token and to now, as the `end` event carries them."""
        created = self.record.created_at
        started = self.record.started_at or created
        timings = {"queued_ms": _ms(started - created), "total_ms": _ms(time.time() - created)}
        if self.first_token_at:
            timings["ttft_ms"] = _ms(self.first_token_at - created)
        return timings


def _choose(per_request: float | None, default: float) -> float:
    return default if per_request is None else per_request


def _ms(seconds: float) -> int:
    return max(0, round(seconds * 1000))
