"""From a job's events to a response's: a state machine, so that every replay of a log says the same.

Numbers count from the log's start. What the log has more than one of (`started`, at each takeover) or may lack in a
replay (`status`) makes no event. An item is done when the next kind begins.
"""

from typing import Any

from api.responses.objects import finished, unfinished
from api.responses.output import CallItem, OutputItem, ReasoningItem, RefusalItem, TextItem
from common.aggregate import as_deltas
from common.events import DELTA, END, STARTED, Event
from common.records import JobRecord

_TERMINAL = {"completed": "response.completed", "incomplete": "response.incomplete"}
"""All other ends are `response.failed`, a cancel too: there is no event `response.cancelled`."""


class ResponseMachine:
    """`opening`, then `events` of each event of the log in order. Holds one answer's text."""

    def __init__(self, record: JobRecord) -> None:
        self.number = 0
        """Of the next event."""
        self.response: dict[str, Any] | None = None
        """The whole response, once it has ended."""
        self._record = record
        self._opened = False
        self._running = False
        self._items: list[OutputItem] = []
        self._open: list[OutputItem] = []
        """One of text, or calls: an engine may go back to an earlier call as long as it does nothing but call."""

    def opening(self) -> list[Event]:
        """What is known before the job's first event. Nothing when it was told already."""
        if self._opened:
            return []
        self._opened = True
        background = self._record.response is not None and self._record.response["echo"]["background"]
        first = unfinished(self._record, "queued" if background else "in_progress")
        told = [{"type": "response.created", "response": first}]
        if background:
            told.append({"type": "response.queued", "response": first})
        return self._numbered(told)

    def events(self, event: Event) -> list[Event]:
        opening = self.opening()
        kind = event["type"]
        told: list[Event] = []
        if kind in (STARTED, DELTA) and not self._running:
            self._running = True
            told.append({"type": "response.in_progress", "response": unfinished(self._record, "in_progress")})
        if kind == DELTA:
            self._delta(event, told)
        elif kind == END:
            self._end(event, told)
        return opening + self._numbered(told)

    def _delta(self, event: Event, told: list[Event]) -> None:
        if event.get("reasoning"):
            told.append(self._item_of(ReasoningItem, told).add(event["reasoning"]))
        if event.get("refusal"):
            told.append(self._item_of(RefusalItem, told).add(event["refusal"]))
        if event.get("content"):
            told.append(self._item_of(TextItem, told).add(event["content"]))
        for place, piece in enumerate(event.get("tool_calls") or ()):
            call = self._call(piece, piece.get("index", place), told)
            if arguments := (piece.get("function") or {}).get("arguments"):
                told.append(call.add(arguments))

    def _item_of(self, kind: type[OutputItem], told: list[Event]) -> OutputItem:
        if self._open and isinstance(self._open[0], kind):
            return self._open[0]
        self._finish("completed", told)
        return self._begin(kind(self._record.id, len(self._items)), told)

    def _call(self, piece: dict[str, Any], call: int, told: list[Event]) -> OutputItem:
        for item in self._open:
            if isinstance(item, CallItem) and item.call == call:
                return item
        if self._open and not isinstance(self._open[0], CallItem):
            self._finish("completed", told)
        name = (piece.get("function") or {}).get("name") or ""
        return self._begin(CallItem(self._record.id, len(self._items), call, piece.get("id"), name), told)

    def _begin(self, item: OutputItem, told: list[Event]) -> OutputItem:
        told += item.begin()
        self._items.append(item)
        self._open.append(item)
        return item

    def _finish(self, status: str, told: list[Event]) -> None:
        """`status` is that of the newest item: only this one can have been cut."""
        for item in self._open:
            told += item.finish(status if item is self._items[-1] else "completed")
        self._open = []

    def _end(self, event: Event, told: list[Event]) -> None:
        status = event["status"]
        last = "completed" if status == "completed" else "incomplete"
        output = [item.item(last if item is self._items[-1] else "completed") for item in self._items]
        if status in _TERMINAL:
            self._finish(last, told)
        # OpenAI clears what a cancelled response has said.
        self.response = finished(self._record, event, [] if status == "cancelled" else output)
        told.append({"type": _TERMINAL.get(status, "response.failed"), "response": self.response})

    def _numbered(self, told: list[Event]) -> list[Event]:
        numbered = [{**event, "sequence_number": self.number + i} for i, event in enumerate(told)]
        self.number += len(told)
        return numbered


def whole(record: JobRecord, result: dict[str, Any], end: Event) -> dict[str, Any]:
    """The response of an aggregated result."""
    machine = ResponseMachine(record)
    for delta in as_deltas(result, record.kind):
        machine.events(delta)
    machine.events(end)
    assert machine.response is not None
    return machine.response
