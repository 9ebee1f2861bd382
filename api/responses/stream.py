"""A response's stream: named events without `id:` lines, because the cursor is the `sequence_number`."""

from api.attachment import Attachment
from api.follow import Said
from api.pod import Pod
from api.sse import JobStream, sse_bytes
from api.views.responses import ResponsesView
from common.errors import BadRequest
from common.events import DELTA
from common.records import JobRecord

WINDOW_HEADER = "X-Tailrace-Resumable-Seconds"
"""How long after its end a background response can be streamed again."""


class ResponseStream(JobStream):
    def __init__(self, pod: Pod, attachment: Attachment, after: int = -1) -> None:
        """`after`: number of the last event that is not to be told; the attachment is at the log's start.

        Raises BadRequest when the log has expired.
        """
        if attachment.from_record:
            raise _no_longer_streamed(pod, attachment.record)
        self._response_view = ResponsesView(attachment.record, after)
        super().__init__(pod, attachment, self._response_view)

    def _opening(self) -> bytes:
        return sse_bytes(None, self._response_view.opening())

    def _rendered(self, said: Said) -> bytes:
        if said[0][0] is None and said[0][1]["type"] == DELTA:
            # The log expired under the reader: the whole text in one piece would count differently.
            raise _no_longer_streamed(self._pod, self._attachment.record)
        return b"".join([sse_bytes(None, self._response_view.frames(event)) for _, event in said])


def window(pod: Pod) -> dict[str, str]:
    """The header that states it."""
    return {WINDOW_HEADER: f"{pod.settings.stream_ttl_seconds:g}"}


def _no_longer_streamed(pod: Pod, record: JobRecord) -> BadRequest:
    return BadRequest(
        f"This response can no longer be streamed because it ended more than {pod.settings.stream_ttl_seconds:g} "
        f"seconds ago. The whole response is at /v1/responses/{record.id}.",
        code="stream_expired",
        param="stream",
    )
