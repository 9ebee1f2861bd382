"""What OpenAI's two streaming endpoints have in common: chunks with choices, a usage chunk, `[DONE]`."""

from typing import Any, ClassVar

from pydantic_core import to_json

from common.errors import TailraceError
from common.events import DELTA, END, Event
from common.records import JobRecord

Frame = tuple[str | None, bytes]
"""One SSE event: its name (None: unnamed) and its data, a single line."""

DONE: Frame = (None, b"[DONE]")

TIER_USED = {"auto": "default", "scale": "default", "fast": "priority"}
"""Which service tier an answer says it had, where that is not the one that was asked for."""


class ChunkView:
    """Subclasses name the object and render one choice."""

    object: ClassVar[str]

    def __init__(self, record: JobRecord, include_usage: bool) -> None:
        self._include_usage = include_usage
        # The parts of a chunk that are the same in all of a job's chunks, rendered once.
        self._head = to_json(head(record, self.object))[:-1] + b',"choices":['
        # OpenAI: who asks for the usage finds the field in every chunk, and null in all but the last.
        self._tail = b'],"usage":null}' if include_usage else b"]}"

    def choice(self, event: Event) -> dict[str, Any]:
        raise NotImplementedError

    def frames(self, event: Event) -> list[Frame]:
        kind = event["type"]
        if kind == DELTA:
            return [(None, self._head + to_json(self.choice(event)) + self._tail)]
        if kind == END:
            return self._end(event)
        return []

    def error(self, error: TailraceError) -> list[Frame]:
        return [(None, to_json({"error": error.to_dict()})), DONE]

    def _end(self, event: Event) -> list[Frame]:
        if error := event.get("error"):
            return [(None, to_json({"error": wire_error(error)})), DONE]
        if self._include_usage and event.get("usage"):
            return [(None, self._head + b'],"usage":' + to_json(event["usage"]) + b"}"), DONE]
        return [DONE]


def head(record: JobRecord, object: str) -> dict[str, Any]:
    """What a job's objects have in common. The service tier is named, as OpenAI does, if the request named one."""
    common = {"id": record.id, "object": object, "created": int(record.created_at), "model": record.model}
    tier = record.body.get("service_tier") if record.kind == "chat" else None
    return {**common, "service_tier": TIER_USED.get(tier, tier)} if tier else common


def wire_error(error: dict[str, Any]) -> dict[str, Any]:
    """A logged error as clients see it: without the HTTP status that it carries for readers' answers."""
    return {name: value for name, value in error.items() if name != "status"}
