"""A job's events as Server-Sent Events.

The `id:` of an SSE event is the log's `<attempt>-<seq>`. Where one log event becomes several SSE events, all but
the last carry `<attempt>-<seq>.<n>`, so that a reader can resume between them.
"""

import asyncio
import logging
import time
from dataclasses import dataclass

from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from api.attachment import Attachment
from api.follow import Said
from api.pod import Pod
from api.sends import SendTimedOut
from api.views import View
from api.views.chunks import Frame
from api.waiting import ClientGone, unless_gone
from common.errors import BadRequest, TailraceError
from common.events import START, EventId
from common.tasks import cancel_all

log = logging.getLogger(__name__)

RETRY_MS = 500
"""What readers are told to wait before they resume at another pod."""
SERVER_SEND = "tailrace.send"
"""Where in a request's scope the server's own `send` is, as it was before Starlette wrapped it."""
KEEPALIVE = ServerSentEvent(comment="keepalive", sep="\n").encode()


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


class JobStream(EventSourceResponse):
    """Streams one attachment through a view, of the first event without its first `skip` frames.

    The attachment is closed however the response ends, even if it never began (litellm#30244).

    sse-starlette's response with another way of running. Its own takes five tasks per stream and a cancel scope per
    event, which cost more than the rest of an event's way through the pod (docs/performance.md). Here:

    - one task streams, one waits for the client to leave. The request's own task is neither: each await passes through
      all frames of its task, and there are fifteen of uvicorn, Starlette and FastAPI above this one;
    - chunks go to the server's own `send`, past Starlette's three wrappers, which only want to know of the start;
    - keepalives and sends that take too long are looked after for all streams together (api/keepalive, api/sends);
    - a shutdown comes through the hub, which ends the attachment (api/server).
    """

    def __init__(self, pod: Pod, attachment: Attachment, view: View, skip: int = 0) -> None:
        self.spoke_at = time.monotonic()
        self._pod = pod
        self._attachment = attachment
        self._view = view
        self._skip = skip
        self._send: Send
        self._streaming: asyncio.Task[None] | None = None
        self._keepalive: asyncio.Task[None] | None = None
        super().__init__(iter(()), headers={"Cache-Control": "no-cache", "X-Job-Id": attachment.record.id}, ping=0)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._send = scope[SERVER_SEND]
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            self._streaming = asyncio.create_task(self._stream(), name=f"stream {self._attachment.record.id}")
            self._pod.keepalive.streams.add(self)
            await unless_gone(Request(scope, receive), self._streaming)
            if not self._streaming.cancelled():
                self._streaming.result()
        except ClientGone:
            pass
        except SendTimedOut:
            log.info("job %s: its reader does not read, closed", self._attachment.record.id)
        finally:
            self._pod.keepalive.streams.discard(self)
            self._attachment.close()
            await cancel_all(task for task in (self._streaming, self._keepalive) if task)

    def keep_alive(self) -> None:
        if self._keepalive is None or self._keepalive.done():
            self._keepalive = asyncio.create_task(self._comment(), name="keepalive")

    async def _stream(self) -> None:
        try:
            if opening := self._opening():
                await self._write(opening)
            while said := await self._attachment.next():
                if chunk := self._rendered(said):
                    await self._write(chunk)
        except TailraceError as error:
            # The log cannot be followed further.
            await self._write(sse_bytes(None, self._view.error(error)))
        else:
            if not self._attachment.ended and self._pod.closing:
                await self._write(b"retry: %d\n\n" % RETRY_MS)
        self._pod.keepalive.streams.discard(self)  # else a comment could come after the last chunk
        await self._write(b"", more=False)

    async def _write(self, chunk: bytes, *, more: bool = True) -> None:
        self.spoke_at = time.monotonic()
        await self._pod.sends.send(self._send, {"type": "http.response.body", "body": chunk, "more_body": more})

    async def _comment(self) -> None:
        try:
            await self._write(KEEPALIVE)
        except SendTimedOut:
            assert self._streaming
            self._streaming.cancel()

    def _opening(self) -> bytes:
        """What a protocol says before the job's first event."""
        return b""

    def _rendered(self, said: Said) -> bytes:
        parts: list[bytes] = []
        for id, event in said:
            if frames := self._view.frames(event):
                parts.append(sse_bytes(id, frames, self._skip))
                self._skip = 0
        return b"".join(parts)


def sse_bytes(id: EventId | None, frames: list[Frame], skip: int = 0) -> bytes:
    """The frames of one event. A cursor of another view may count more than there are: the last is always told."""
    last = len(frames) - 1
    told: list[bytes] = []
    for n, (name, data) in enumerate(frames):
        if n < skip and n < last:
            continue
        place = b"" if id is None else b"id: %d-%d\n" % id if n == last else b"id: %d-%d.%d\n" % (*id, n + 1)
        named = b"" if name is None else b"event: %s\n" % name.encode()
        told.append(b"%s%sdata: %s\n\n" % (place, named, data))
    return b"".join(told)
