"""OpenAI chat chunks as the baselines write them."""

import json

from common.events import Event

DONE = b"data: [DONE]\n\n"


def chunk(id: str, event: Event) -> bytes:
    """One SSE event for one `delta` event of an engine."""
    delta = {name: event[name] for name in ("role", "content") if name in event}
    choice = {"index": event["index"], "delta": delta, "finish_reason": event.get("finish_reason")}
    body = {"id": id, "object": "chat.completion.chunk", "created": 0, "model": "simulated", "choices": [choice]}
    return b"data: %s\n\n" % json.dumps(body).encode()
