"""Tailrace's own view: the canonical events themselves, named by their type."""

from pydantic_core import to_json

from api.views.chunks import Frame, wire_error
from common.errors import TailraceError
from common.events import END, Event


class NativeView:
    def frames(self, event: Event) -> list[Frame]:
        # Token ids are for the next attempt, not for readers.
        seen = {name: value for name, value in event.items() if name not in ("token_ids", "type")}
        if event["type"] == END and event.get("error"):
            seen["error"] = wire_error(event["error"])
        return [(event["type"], to_json(seen))]

    def error(self, error: TailraceError) -> list[Frame]:
        return [("error", to_json({"error": error.to_dict()}))]
