"""From the log to what a continuation is told, as the vLLM engine takes it."""

from typing import Any

from common import events
from common.aggregate import Aggregate
from workers.engines.vllm.delivered import Delivered


def heard(*deltas: dict[str, Any]) -> Aggregate:
    whole = Aggregate()
    for delta in deltas:
        whole.add(delta)
    return whole


def test_what_was_delivered_is_dropped_from_a_repeated_answer() -> None:
    said = [
        events.delta(role="assistant", reasoning="think ", token_ids=[1]),
        events.delta(content="Hello ", token_ids=[2]),
        events.delta(tool_calls=[{"index": 0, "id": "c1", "function": {"name": "f", "arguments": '{"a"'}}]),
        events.delta(tool_calls=[{"index": 0, "function": {"arguments": ": 1"}}]),
    ]
    delivered = heard(*said).delivered()
    assert "finish_reason" not in delivered
    repeated = Delivered(delivered)
    for delta in said:
        again = {**delta, "tool_calls": [{**piece} for piece in delta.get("tool_calls", [])]}
        repeated.drop_from(again, replayed=True)
        assert not {"role", "content", "reasoning", "tool_calls"} & {name for name, value in again.items() if value}
    last = events.delta(content="world", finish_reason="length")
    repeated.drop_from(last, replayed=False)
    assert last == events.delta(content="world", finish_reason="length"), "what is new is kept, its finish too"


def test_a_finish_that_was_delivered_is_not_told_again() -> None:
    delivered = heard(events.delta(content="all", finish_reason="stop", stop_reason="x")).delivered()
    last = events.delta(content="all", finish_reason="stop", stop_reason="x")
    Delivered(delivered).drop_from(last, replayed=True)
    assert last == events.delta()
