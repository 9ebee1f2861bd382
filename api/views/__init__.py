"""Views turn the canonical log into what a protocol's readers expect. One module per protocol.

A view has no memory of what it said before, so that a reader can resume at any event: everything it needs is in
the event, or in the job's record. The exception is `responses`, which must hear all events from the first one on.
"""

from typing import Any, Protocol

from api.responses import machine
from api.views import chat, completion
from api.views.chat import ChatView
from api.views.chunks import Frame
from api.views.completion import CompletionView
from api.views.native import NativeView
from api.views.responses import ResponsesView
from common.errors import BadRequest, TailraceError
from common.events import Event
from common.records import JobRecord


class View(Protocol):
    def frames(self, event: Event) -> list[Frame]:
        """What readers see of one event; the frames of the last event close the stream for them."""

    def error(self, error: TailraceError) -> list[Frame]:
        """How a stream that cannot go on says so."""


def make_view(name: str, record: JobRecord, *, include_usage: bool = True) -> View:
    """Raises BadRequest for an unknown view, or one that does not fit the job's kind."""
    if name == "native":
        return NativeView()
    if name in ("chat", "completion") and name != record.kind:
        raise BadRequest(f"A {record.kind} job has no {name} view.", param="view")
    if name == "chat":
        return ChatView(record, include_usage)
    if name == "completion":
        return CompletionView(record, include_usage)
    if name == "responses":
        if record.response is None:
            raise BadRequest("Only jobs of the Responses API have a responses view.", param="view")
        return ResponsesView(record)
    raise BadRequest(f"Unknown view {name!r}; use native, chat, completion or responses.", param="view")


def whole(record: JobRecord, result: dict[str, Any]) -> dict[str, Any]:
    """The object that a non-streaming request of the job's kind answers; of a response, once the job has ended."""
    if record.response is not None:
        return machine.whole(record, result, record.end_event())
    render = chat.whole if record.kind == "chat" else completion.whole
    return render(record, result)
