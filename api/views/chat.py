"""Chat completions: `chat.completion.chunk` for streams, `chat.completion` as a whole."""

from typing import Any

from api.views.chunks import ChunkView, head
from common.events import Event
from common.records import JobRecord

_DELTA_FIELDS = ("role", "content", "reasoning", "tool_calls")


class ChatView(ChunkView):
    object = "chat.completion.chunk"

    def choice(self, event: Event) -> dict[str, Any]:
        choice = {
            "index": event["index"],
            "delta": {name: event[name] for name in _DELTA_FIELDS if name in event},
            "logprobs": event.get("logprobs"),
            "finish_reason": event.get("finish_reason"),
        }
        if "stop_reason" in event:
            choice["stop_reason"] = event["stop_reason"]
        return choice


def whole(record: JobRecord, result: dict[str, Any]) -> dict[str, Any]:
    """The `chat.completion` object of an aggregated result."""
    choices = [_whole_choice(choice) for choice in result["choices"]]
    return {**head(record, "chat.completion"), "choices": choices, "usage": result.get("usage")}


def _whole_choice(choice: dict[str, Any]) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": choice["content"], "refusal": None}
    if "reasoning" in choice:
        message["reasoning"] = choice["reasoning"]
    if "tool_calls" in choice:
        message["tool_calls"] = choice["tool_calls"]
        # OpenAI: content is null when the answer is tool calls only.
        message["content"] = choice["content"] or None
    return {
        "index": choice["index"],
        "message": message,
        "logprobs": choice.get("logprobs"),
        "finish_reason": choice["finish_reason"],
        "stop_reason": choice.get("stop_reason"),
    }
