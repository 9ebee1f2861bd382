"""One stream that somebody in this pod reads, and its newest entries."""

import asyncio
import time
from typing import Any

from common import events
from common.events import Event, EventId

RING_ENTRIES = 64
RING_BYTES = 65_536

Entry = tuple[EventId, Event]


class Topic:
    """`tail` is the id of the last entry that was read from Redis."""

    __slots__ = (
        "_before",
        "_loop",
        "_ring_bytes",
        "_waiters",
        "closing",
        "failure",
        "handed_over",
        "job_id",
        "key",
        "moved_at",
        "over",
        "readers",
        "ring",
        "tail",
        "waiting_again",
    )

    def __init__(self, job_id: str, key: str, tail: EventId, *, closing: bool = False) -> None:
        self.job_id = job_id
        self.key = key.encode()
        self.tail = tail
        self.ring: list[Entry] = []
        self.readers = 0
        self.moved_at = time.monotonic()
        self.failure: Exception | None = None
        """Why its readers cannot go on; they raise it."""
        self.over = False
        """The job's record is terminal or gone."""
        self.closing = closing
        self.waiting_again = 0
        """Attempt whose worker is gone while the job waits for the next one; 0: none."""
        self.handed_over = False
        """Whether that worker gave the job back, and did not lose it."""
        self._ring_bytes = 0
        self._before: EventId | None = None
        # Kept, because Python 3.11 looks it up with a system call.
        self._loop = asyncio.get_running_loop()
        self._waiters: list[asyncio.Future[None]] = []

    def take(self, items: list[Any]) -> None:
        """Add new entries as XREAD replies them, [[id, [field, payload]], ...], and wake the readers."""
        ids = [EventId.of_entry(id) for id, _ in items]
        entries: list[Entry] = []
        size = 0
        try:
            for id, (_, (_, payload)) in zip(ids, items, strict=True):
                entries.append((id, events.decode(payload)))
                size += len(payload)
        except ValueError:
            entries = []  # what cannot be decoded is not in the ring: its readers meet it in the log, and fail there
        self._make_room(ids[0], entries, size)
        self.ring += entries
        self.tail = ids[-1]
        self.moved_at = time.monotonic()
        self.waiting_again = 0
        self.wake()

    def after(self, cursor: EventId) -> list[Entry] | None:
        """Entries of the ring after `cursor`; None when the ring cannot tell: then the log itself must be asked."""
        if not self.ring:
            return None
        # seq has no holes (see _make_room), so the place in the ring is a subtraction.
        start = cursor.seq + 1 - self.ring[0][0].seq
        if not 0 <= start <= len(self.ring):
            return None
        # A cursor that is not in this log (made up, or of entries that Redis has lost) must not pass for one that is.
        if cursor != (self.ring[start - 1][0] if start else self._before):
            return None
        return self.ring[start:]

    async def wait(self) -> None:
        """Until something has changed. For a reader that has everything up to `tail`."""
        waiter = self._loop.create_future()
        self._waiters.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter in self._waiters:
                self._waiters.remove(waiter)
            raise

    def wake(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _make_room(self, first: EventId, entries: list[Entry], size: int) -> None:
        """Start the ring anew when what it holds is of no use to anybody, or too much.

        When all readers wait, all have what is in it: else each of thousands of streams would hold 64 entries. After
        a gap (trimmed or lost entries) readers before it must go to Redis, to be told there.
        """
        contiguous = first.seq == self.tail.seq + 1
        full = len(self.ring) + len(entries) > RING_ENTRIES or self._ring_bytes + size > RING_BYTES
        if full or not contiguous or not entries or len(self._waiters) == self.readers:
            self.ring, self._ring_bytes = [], 0
            self._before = self.tail if contiguous else None
        self._ring_bytes += size
