"""One choice of an OpenAI-style streaming chunk as a canonical delta, for vLLM's serving layer and any upstream."""

from typing import Any

from common.events import Event, delta

_MESSAGE_PARTS = ("role", "content", "reasoning", "refusal", "tool_calls")
_CHOICE_PARTS = ("logprobs", "finish_reason", "stop_reason")


def delta_of(choice: dict[str, Any]) -> Event:
    """The choice of a `chat.completion.chunk` or a `text_completion`; empty parts are left out."""
    message = choice.get("delta") or {"content": choice.get("text")}
    parts = {name: message[name] for name in _MESSAGE_PARTS if message.get(name)}
    if message.get("reasoning_content"):
        parts["reasoning"] = message["reasoning_content"]  # the older name, still used by several servers
    parts |= {name: choice[name] for name in _CHOICE_PARTS if choice.get(name) is not None}
    return delta(choice["index"], **parts)


def says_something(event: Event) -> bool:
    """Whether a delta has more than its type and index."""
    return len(event) > 2
