"""Input items as chat messages."""

from typing import Any

import pytest

from api.responses.items import messages_of, parse_items


def assistant(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def reasoning(text: str) -> dict[str, Any]:
    return {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": text}]}


def call(name: str) -> dict[str, Any]:
    return {"type": "function_call", "call_id": f"id-{name}", "name": name, "arguments": "{}"}


def turn(*calls: str, **parts: str) -> dict[str, Any]:
    said = [{"id": f"id-{name}", "type": "function", "function": {"name": name, "arguments": "{}"}} for name in calls]
    return {"role": "assistant", **parts, **({"tool_calls": said} if said else {})}


@pytest.mark.parametrize(
    ("items", "messages"),
    [
        ("hi", [{"role": "user", "content": "hi"}]),
        ([{"role": "developer", "content": "x"}], [{"role": "system", "content": "x"}]),
        ([assistant("a"), assistant("b")], [turn(content="a"), turn(content="b")]),
        ([reasoning("r"), assistant("a"), call("f"), call("g")], [turn("f", "g", reasoning="r", content="a")]),
        ([reasoning("r"), call("f")], [turn("f", reasoning="r")]),
        ([call("f"), assistant("a")], [turn("f"), turn(content="a")]),
        ([assistant("a"), reasoning("r"), assistant("b")], [turn(content="a"), turn(reasoning="r", content="b")]),
        (
            [{"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "x"}]}],
            [{"role": "tool", "tool_call_id": "c", "content": "x"}],
        ),
        (
            [{"role": "user", "content": [{"type": "input_text", "text": t} for t in "ab"]}],
            [{"role": "user", "content": [{"type": "text", "text": t} for t in "ab"]}],
        ),
        (
            [{"role": "user", "content": [{"type": "input_image", "image_url": "u", "detail": "low"}]}],
            [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "u", "detail": "low"}}]}],
        ),
    ],
)
def test_messages(items: Any, messages: list[dict[str, Any]]) -> None:
    assert messages_of(parse_items(items)) == messages
