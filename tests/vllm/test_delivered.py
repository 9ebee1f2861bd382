"""What is dropped from a repeated answer; needs no engine."""

from typing import Any

import pytest

from common.events import Event, delta
from tests.vllm.answers import merged
from workers.engines.base import EngineFailed
from workers.engines.vllm.delivered import Delivered


def call(index: int, name: str | None = None, arguments: str = "", call_id: str = "a") -> dict[str, Any]:
    if name is None:
        return {"index": index, "function": {"arguments": arguments}}
    return {"index": index, "id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def answer(call_id: str) -> list[Event]:
    """Ids of tool calls are random: a repeated answer has other ones."""
    return [
        delta(role="assistant"),
        delta(reasoning="Let me "),
        delta(reasoning="think."),
        delta(content="Looking "),
        delta(content="it up."),
        delta(tool_calls=[call(0, "weather", call_id=call_id)]),
        delta(tool_calls=[call(0, arguments='{"city": ')]),
        delta(tool_calls=[call(0, arguments='"Rome"}'), call(1, "time", "{}", call_id=call_id)]),
        delta(finish_reason="tool_calls", stop_reason=7),
    ]


def remaining(delivered: Event, repeated: list[Event]) -> list[Event]:
    filter_ = Delivered(delivered)
    for event in repeated:
        filter_.drop_from(event, replayed=False)
    return [event for event in repeated if len(event) > 2]


@pytest.mark.parametrize("cut", range(len(answer("a")) + 1))
def test_only_the_rest_remains(cut: int) -> None:
    rest = remaining(merged(answer("a")[:cut]), answer("b"))
    assert [event | {"tool_calls": anonymous(event)} for event in rest] == [
        event | {"tool_calls": anonymous(event)} for event in answer("a")[cut:]
    ]


def anonymous(event: Event) -> list[dict[str, Any]]:
    return [{key: piece[key] for key in piece if key != "id"} for piece in event.get("tool_calls", [])]


@pytest.mark.parametrize("length", range(len("Looking it up.") + 1))
def test_text_is_cut_within_deltas(length: int) -> None:
    text = "Looking it up."
    rest = remaining(
        delta(role="assistant", content=text[:length]), [delta(content="Look"), delta(content="ing it up.")]
    )
    assert "".join(event["content"] for event in rest) == text[length:]


def test_a_repeated_text_that_differs_is_an_error() -> None:
    with pytest.raises(EngineFailed, match="differs"):
        remaining(delta(content="Looking"), [delta(content="Lo"), delta(content="ve")])


def test_offsets_go_on_where_the_delivered_ones_ended() -> None:
    filter_ = Delivered(delta(logprobs={"tokens": ["a", "bc"], "text_offset": [0, 1]}))
    first = delta(logprobs={"tokens": ["d", "ef"], "text_offset": [5, 6]})
    second = delta(logprobs={"tokens": ["g"], "text_offset": [8]})
    for event in (first, second):
        filter_.drop_from(event, replayed=False)
    assert [first["logprobs"]["text_offset"], second["logprobs"]["text_offset"]] == [[3, 4], [6]]
