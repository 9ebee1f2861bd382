"""A job's events as Server-Sent Events.

The `id:` of an SSE event is the log's `<attempt>-<seq>`. Where one log event becomes several SSE events, all but
the last carry `<attempt>-<seq>.<n>`, so that a reader can resume between them.
"""

import contextlib
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass

from sse_starlette import EventSourceResponse, ServerSentEvent
from sse_starlette.sse import SendTimeoutError
from starlette.types import Receive, Scope, Send

from api.follow import Said
from api.hub import HubClosing
from api.pod import Pod
from api.views import View
from api.views.chunks import Frame
from common.connections import translated
from common.errors import BadRequest, TailraceError
from common.events import DELTA, END, START, EventId
from common.records import JobRecord

log = logging.getLogger(__name__)

RETRY_MS = 500
"""What readers are told to wait before they resume at another pod."""


@dataclass(frozen=True, slots=True)
class Cursor:
    """Where to resume: after `id`, and of the event that follows, without its first `skip` frames."""

    id: EventId
    skip: int = 0


FROM_START = Cursor(START)


def parse_cursor(text: str | None, param: str) -> Cursor:
    """`<attempt>-<seq>` or `<attempt>-<seq>.<n>`; None or empty is the start. Raises BadRequest."""
    if not text:
        return FROM_START
    id_text, dot, skip = text.partition(".")
    try:
        id = EventId.parse(id_text)
        if id.attempt == 0 and id != START:
            raise ValueError(text)
        if not dot:
            return Cursor(id)
        if not (skip.isascii() and skip.isdigit() and id.seq > 0):
            raise ValueError(text)
        return Cursor(EventId(id.attempt, id.seq - 1), int(skip))
    except ValueError:
        raise BadRequest(
            f"{param} must be an event id like '1-42', not {text[:64]!r}.", code="invalid_cursor", param=param
        ) from None


class Attachment:
    """One reader of one job in this pod, from before its first byte to after its last. Closing again does nothing."""

    def __init__(self, pod: Pod, record: JobRecord, cursor: Cursor) -> None:
        self.record = record
        self.ended = False
        self._pod = pod
        self._said = pod.follower.follow(record, cursor.id)
        self._token_seen = cursor.id != START
        self._open = False

    async def open(self) -> None:
        # First of all, so that `close` undoes it even when the attaching itself is cut short.
        self._open = True
        self._pod.stream_opened()
        await self._pod.presence.attach(self.record)

    async def close(self) -> None:
        """Leave the job; what this means for it is up to its `on_disconnect`."""
        if not self._open:
            return
        self._open = False
        self._pod.stream_closed()
        self._pod.presence.detach(self.record, ended=self.ended, closing=self._pod.closing)
        # No await before this line: the caller may be cancelled, and the job must hear of it all the same.
        with contextlib.suppress(RuntimeError):
            await self._said.aclose()

    async def batches(self) -> AsyncGenerator[Said]:
        """The follower's batches until the end, or until the pod sends its readers away (then without an end).

        Raises TailraceError.
        """
        with translated(), contextlib.suppress(HubClosing):
            async for said in self._said:
                self.ended = said[-1][1]["type"] == END
                self._note(said)
                yield said

    def _note(self, said: Said) -> None:
        self._pod.metrics.events.inc(len(said))
        if not self._token_seen and any(event["type"] == DELTA for _, event in said):
            self._token_seen = True
            self._pod.metrics.ttft.observe(max(0.0, time.time() - self.record.created_at))


async def sse_frames(batches: AsyncIterator[Said], view: View, skip: int = 0) -> AsyncGenerator[bytes]:
    """SSE bytes, one chunk per batch. Ends with the view's error frames when the log cannot be followed further."""
    try:
        async for said in batches:
            parts: list[bytes] = []
            for id, event in said:
                frames = view.frames(event)
                # A cursor of another view may count more frames than this one has; the last one is always told.
                first = min(skip, len(frames) - 1)
                parts += [_sse(id, n, len(frames), frame) for n, frame in enumerate(frames) if n >= first]
                skip = 0
            if parts:
                yield b"".join(parts)
    except TailraceError as error:
        yield b"".join(_sse(None, 0, 1, frame) for frame in view.error(error))


def _sse(id: EventId | None, n: int, of: int, frame: Frame) -> bytes:
    name, data = frame
    lines = b""
    if id is not None:
        lines = b"id: %d-%d\n" % id if n == of - 1 else b"id: %d-%d.%d\n" % (*id, n + 1)
    if name is not None:
        lines += b"event: %s\n" % name.encode()
    return b"%sdata: %s\n\n" % (lines, data)


class JobStream(EventSourceResponse):
    """Streams one attachment. Its cleanup runs however the response ends, even if it never began (litellm#30244)."""

    def __init__(
        self, pod: Pod, attachment: Attachment, frames: AsyncGenerator[bytes], headers: dict[str, str] | None = None
    ) -> None:
        self._pod = pod
        self._attachment = attachment
        self._frames = frames
        super().__init__(
            self._body(),
            headers={"Cache-Control": "no-cache", "X-Job-Id": attachment.record.id, **(headers or {})},
            ping=pod.settings.keepalive_seconds,
            ping_message_factory=lambda: ServerSentEvent(comment="keepalive", sep="\n"),
            send_timeout=pod.settings.send_timeout_seconds,
            sep="\n",
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        except* SendTimeoutError:
            log.info("job %s: its reader does not read, closed", self._attachment.record.id)
        finally:
            try:
                await self._attachment.close()
            finally:
                await self._frames.aclose()

    async def _body(self) -> AsyncGenerator[bytes]:
        async for chunk in self._frames:
            yield chunk
        if not self._attachment.ended and self._pod.closing:
            yield b"retry: %d\n\n" % RETRY_MS
