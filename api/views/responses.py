"""The Responses API: a response's events, each with its number.

The one view with a memory: a number can only be known by counting from the log's start. A reader that resumes is
told the same events, counted silently up to where it was.
"""

from pydantic_core import to_json

from api.responses.machine import ResponseMachine
from api.views.chunks import Frame
from common.errors import TailraceError
from common.events import Event
from common.records import JobRecord


class ResponsesView:
    def __init__(self, record: JobRecord, after: int = -1) -> None:
        """`after`: number of the last event that is not to be told."""
        self._machine = ResponseMachine(record)
        self._after = after

    def opening(self) -> list[Frame]:
        """What is told before the job's first event."""
        return self._frames(self._machine.opening())

    def frames(self, event: Event) -> list[Frame]:
        return self._frames(self._machine.events(event))

    def hear(self, event: Event) -> None:
        """Count what an event says, for a reader who was told it before."""
        self._machine.events(event)

    def error(self, error: TailraceError) -> list[Frame]:
        # No event of the response, so it takes no number: a reader that resumes after it misses nothing.
        number = max(self._machine.number - 1, self._after)
        told = {"message": error.message, "code": error.code, "param": error.param, "sequence_number": number}
        return [("error", to_json({"type": "error", **told}))]

    def _frames(self, events: list[Event]) -> list[Frame]:
        return [(event["type"], to_json(event)) for event in events if event["sequence_number"] > self._after]
