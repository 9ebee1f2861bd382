"""A job's events as Server-Sent Events.

The `id:` of an SSE event is the log's `<attempt>-<seq>`. Where one log event becomes several SSE events, all but
the last carry `<attempt>-<seq>.<n>`, so that a reader can resume between them.
"""

import logging
from collections.abc import AsyncGenerator
from dataclasses import dataclass

from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.types import Message, Receive, Scope, Send

from api.attachment import Attachment
from api.follow import Said
from api.pod import Pod
from api.sends import SendTimedOut
from api.views import View
from api.views.chunks import Frame
from common.errors import BadRequest, TailraceError
from common.events import START, EventId

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


class JobStream(EventSourceResponse):
    """Streams one attachment through a view, of the first event without its first `skip` frames.

    The attachment is closed however the response ends, even if it never began (litellm#30244).
    """

    def __init__(self, pod: Pod, attachment: Attachment, view: View, skip: int = 0) -> None:
        self._pod = pod
        self._attachment = attachment
        self._view = view
        self._skip = skip
        super().__init__(
            self._chunks(),
            headers={"Cache-Control": "no-cache", "X-Job-Id": attachment.record.id},
            ping=pod.settings.keepalive_seconds,
            ping_message_factory=lambda: ServerSentEvent(comment="keepalive", sep="\n"),
            sep="\n",
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        except* SendTimedOut:
            log.info("job %s: its reader does not read, closed", self._attachment.record.id)
        finally:
            self._attachment.close()

    async def _send_with_timeout(self, send: Send, message: Message) -> None:
        await self._pod.sends.send(send, message)

    async def _chunks(self) -> AsyncGenerator[bytes]:
        """One chunk per batch. Ends with the view's error frames when the log cannot be followed further."""
        try:
            if opening := self._opening():
                yield opening
            while said := await self._attachment.next():
                if chunk := self._rendered(said):
                    yield chunk
        except TailraceError as error:
            yield b"".join([_sse(None, 0, 1, frame) for frame in self._view.error(error)])
        else:
            if not self._attachment.ended and self._pod.closing:
                yield b"retry: %d\n\n" % RETRY_MS

    def _opening(self) -> bytes:
        """What a protocol says before the job's first event."""
        return b""

    def _rendered(self, said: Said) -> bytes:
        parts: list[bytes] = []
        for id, event in said:
            frames = self._view.frames(event)
            # A cursor of another view may count more frames than this one has; the last one is always told.
            first = min(self._skip, len(frames) - 1)
            parts += [_sse(id, n, len(frames), frame) for n, frame in enumerate(frames) if n >= first]
            self._skip = 0
        return b"".join(parts)


def _sse(id: EventId | None, n: int, of: int, frame: Frame) -> bytes:
    name, data = frame
    lines = b""
    if id is not None:
        lines = b"id: %d-%d\n" % id if n == of - 1 else b"id: %d-%d.%d\n" % (*id, n + 1)
    if name is not None:
        lines += b"event: %s\n" % name.encode()
    return b"%sdata: %s\n\n" % (lines, data)
