"""Chat completions: `chat.completion.chunk` for streams, `chat.completion` as a whole."""

from typing import Any

from pydantic_core import to_json

from api.views.chunks import ChunkView, Frame, head
from common.events import Event
from common.records import JobRecord

_DELTA_FIELDS = ("role", "content", "reasoning", "refusal", "tool_calls")
_TEXT_ALONE = {"type", "index", "content", "token_ids"}
_END_FIELDS = ("finish_reason", "stop_reason")


class ChatView(ChunkView):
    object = "chat.completion.chunk"

    def frames(self, event: Event) -> list[Frame]:
        if "content" in event and event.keys() <= _TEXT_ALONE:
            # Nearly all of an answer: what `choice` says of such an event, at half the cost.
            text = (event["index"], to_json(event["content"]))
            choice = b'{"index":%d,"delta":{"content":%s},"logprobs":null,"finish_reason":null}' % text
            return [(None, self._head + choice + self._tail)]
        if "tool_calls" not in event or "finish_reason" not in event:
            return super().frames(event)
        # As OpenAI does. In one chunk, the SDK's stream helper would not see that the last call is complete.
        end = {name: event[name] for name in ("type", "index", *_END_FIELDS) if name in event}
        said = {name: value for name, value in event.items() if name not in _END_FIELDS}
        return [*super().frames(said), *super().frames(end)]

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
    completion = {**head(record, "chat.completion"), "choices": choices, "usage": result.get("usage")}
    if record.body.get("metadata"):
        completion["metadata"] = record.body["metadata"]
    return completion


def _whole_choice(choice: dict[str, Any]) -> dict[str, Any]:
    message: dict[str, Any] = {
        "role": "assistant",
        "content": choice["content"],
        "refusal": choice.get("refusal"),
    }
    if "reasoning" in choice:
        message["reasoning"] = choice["reasoning"]
    if "tool_calls" in choice:
        message["tool_calls"] = choice["tool_calls"]
    if "tool_calls" in choice or "refusal" in choice:
        # OpenAI: content is null when the answer is something else only.
        message["content"] = choice["content"] or None
    return {
        "index": choice["index"],
        "message": message,
        "logprobs": choice.get("logprobs"),
        "finish_reason": choice["finish_reason"],
        "stop_reason": choice.get("stop_reason"),
    }
