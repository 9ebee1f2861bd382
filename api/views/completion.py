"""Text completions: `text_completion` objects, streamed and whole."""

from typing import Any

from api.views.chunks import ChunkView, head
from common.events import Event
from common.records import JobRecord


class CompletionView(ChunkView):
    object = "text_completion"

    def choice(self, event: Event) -> dict[str, Any]:
        return _choice(event)


def whole(record: JobRecord, result: dict[str, Any]) -> dict[str, Any]:
    """The `text_completion` object of an aggregated result."""
    choices = [_choice(choice) for choice in result["choices"]]
    return {**head(record, "text_completion"), "choices": choices, "usage": result.get("usage")}


def _choice(choice: dict[str, Any]) -> dict[str, Any]:
    """A delta or a whole choice: both have the same fields."""
    return {
        "index": choice["index"],
        "text": choice.get("content", ""),
        "logprobs": choice.get("logprobs"),
        "finish_reason": choice.get("finish_reason"),
        "stop_reason": choice.get("stop_reason"),
    }
