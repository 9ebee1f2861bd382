"""The state machine: the same log, the same events, whatever the entries' sizes and wherever a reader resumes."""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from api.responses.machine import ResponseMachine, whole
from api.views.responses import ResponsesView
from common import events
from common.aggregate import Aggregate
from common.errors import Unavailable
from common.events import Event
from tests.responses.support import check_event, check_response, check_sequence, record_of, text_of

USAGE = {"prompt_tokens": 3, "completion_tokens": 5, "total_tokens": 8}


def completed(**more: Any) -> Event:
    return events.end("completed", **{"finish_reason": "stop", "usage": USAGE, "timings": {"total_ms": 900}, **more})


def told(log: list[Event], **body: Any) -> list[Event]:
    """All events of a log, as a reader has them from JSON."""
    view = ResponsesView(record_of(**body))
    frames = view.opening() + [frame for event in log for frame in view.frames(event)]
    for name, data in frames:
        assert json.loads(data)["type"] == name
    return [json.loads(data) for _, data in frames]


def types(told: list[Event]) -> list[str]:
    return [event["type"].removeprefix("response.") for event in told]


def call(index: int, arguments: str, name: str | None = None, id: str | None = None) -> dict[str, Any]:
    piece: dict[str, Any] = {"index": index, "function": {"arguments": arguments}}
    if name:
        piece |= {"id": id, "type": "function"}
        piece["function"]["name"] = name
    return piece


def test_text() -> None:
    hello = [events.delta(content="Hel", role="assistant"), events.delta(content="lo")]
    log = [events.started(1, "w"), *hello, completed()]
    said = check_sequence(told(log))
    assert types(said) == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]
    assert text_of(said) == "Hello"
    response = said[-1]["response"]
    assert response["output"] == [said[-2]["item"]]
    assert response["output"][0]["content"][0]["text"] == "Hello"
    assert response["usage"]["input_tokens"] == 3
    assert (response["created_at"], response["completed_at"]) == (1700000000, 1700000001)


def test_reasoning_then_text_then_calls() -> None:
    log = [
        events.started(1, "w"),
        events.delta(reasoning="Hm", content="So: "),
        events.delta(tool_calls=[call(0, "", "f", "call_1")]),
        events.delta(tool_calls=[call(0, '{"a":1}'), call(1, "{", "g")]),
        events.delta(tool_calls=[call(1, "}")]),
        completed(finish_reason="tool_calls"),
    ]
    said = check_sequence(told(log))
    output = said[-1]["response"]["output"]
    assert [item["type"] for item in output] == ["reasoning", "message", "function_call", "function_call"]
    assert output[0]["content"] == [{"type": "reasoning_text", "text": "Hm"}]
    assert (output[2]["call_id"], output[2]["name"], output[2]["arguments"]) == ("call_1", "f", '{"a":1}')
    assert (output[3]["call_id"], output[3]["arguments"]) == ("call_ab_3", "{}"), "an engine that gives no id"
    assert len({item["id"] for item in output}) == 4
    done = [event["item"] for event in said if event["type"] == "response.output_item.done"]
    assert done == output, "each item is done when the next begins, and not told twice"


def test_an_item_ends_when_another_kind_begins() -> None:
    said = told([events.delta(content="a"), events.delta(reasoning="b"), events.delta(content="c"), completed()])
    assert [item["type"] for item in said[-1]["response"]["output"]] == ["message", "reasoning", "message"]


def test_takeovers_and_waits_make_no_events() -> None:
    log = [events.started(1, "w"), events.delta(content="a"), events.delta(content="b"), completed()]
    again = [log[0], log[1], {"type": "status", "status": "queued"}, events.started(2, "x"), *log[2:]]
    assert told(again) == told(log)


def test_a_background_response_is_queued_first() -> None:
    said = check_sequence(told([events.started(1, "w"), completed()], background=True))
    assert types(said) == ["created", "queued", "in_progress", "completed"]
    assert [event["response"]["status"] for event in said] == ["queued", "queued", "in_progress", "completed"]


def test_ends() -> None:
    begun = [events.started(1, "w"), events.delta(content="a")]
    cut = check_sequence(told([*begun, events.end("incomplete", finish_reason="length")]))[-1]["response"]
    assert (cut["status"], cut["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert cut["output"][0]["status"] == "incomplete"
    calls = events.delta(tool_calls=[call(0, "{}", "f"), call(1, "{", "g")])
    cut = check_sequence(told([calls, events.end("incomplete", finish_reason="length")]))[-1]["response"]
    assert [item["status"] for item in cut["output"]] == ["completed", "incomplete"]
    filtered = check_sequence(told([*begun, events.end("incomplete", finish_reason="content_filter")]))[-1]["response"]
    assert filtered["incomplete_details"] == {"reason": "content_filter"}
    error = Unavailable("Lost.", code="worker_lost").to_event()
    failed = check_sequence(told([*begun, events.end("failed", error=error)]))
    assert types(failed)[-2:] == ["output_text.delta", "failed"]
    assert failed[-1]["response"]["error"] == {"code": "server_error", "message": "Lost."}
    assert failed[-1]["response"]["output"][0]["content"][0]["text"] == "a"
    cancelled = check_sequence(told([*begun, events.end("cancelled", error=error)]))[-1]
    assert (cancelled["type"], cancelled["response"]["status"]) == ("response.failed", "cancelled")
    assert cancelled["response"]["output"] == []
    assert cancelled["response"]["error"] is None
    waiting = check_sequence(told([events.end("cancelled", error=error)], background=True))
    assert types(waiting) == ["created", "queued", "failed"]


def test_an_error_of_the_transport_takes_no_number() -> None:
    """Who resumes after it must miss nothing."""
    view = ResponsesView(record_of())
    last = [json.loads(data) for _, data in view.opening()][-1]
    [(name, data)] = view.error(Unavailable("Redis is away."))
    error = check_event(json.loads(data))
    assert name == "error"
    assert error["sequence_number"] == last["sequence_number"]
    assert json.loads(ResponsesView(record_of(), after=7).error(Unavailable(""))[0][1])["sequence_number"] == 7


def test_everything_that_was_asked_for_is_echoed() -> None:
    asked: dict[str, Any] = {
        "instructions": "Be brief.",
        "metadata": {"k": "v"},
        "max_output_tokens": 9,
        "temperature": 0.5,
        "top_p": 0.9,
        "tools": [{"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": True}],
        "tool_choice": {"type": "function", "name": "f"},
        "parallel_tool_calls": False,
        "reasoning": {"effort": "low"},
        "text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}}},
        "user": "u",
        "previous_response_id": "resp_0",
    }
    response = check_response(ResponseMachine(record_of(**asked)).opening()[0]["response"])
    response["tools"] = [{k: v for k, v in tool.items() if v is not None} for tool in response["tools"]]
    response["reasoning"] = {k: v for k, v in response["reasoning"].items() if v is not None}
    response["text"] = {"format": response["text"]["format"]}
    assert {name: response[name] for name in asked} == asked


kinds = st.sampled_from(["reasoning", "refusal", "content", "call 0", "call 1"])
pieces = st.lists(st.tuples(kinds, st.text(min_size=1, max_size=3)), max_size=12)


def as_delta(kind: str, text: str, first: bool) -> Event:
    if not kind.startswith("call"):
        return {"type": "delta", "index": 0, kind: text}
    index = int(kind[-1])
    return events.delta(tool_calls=[call(index, text, *(("f", f"call_{index}") if first else ()))])


def log_of(spoken: list[tuple[str, str]]) -> list[Event]:
    seen: set[str] = set()
    deltas = []
    for kind, text in spoken:
        deltas.append(as_delta(kind, text, kind not in seen))
        seen.add(kind)
    return [events.started(1, "w"), *deltas, completed()]


def merged(log: list[Event], cuts: list[bool]) -> list[Event]:
    """The log with deltas merged wherever that is allowed and `cuts` does not say otherwise."""
    entries: list[Event] = []
    for event, cut in zip(log, cuts, strict=True):
        last = entries[-1] if entries else None
        if last and last["type"] == event["type"] == "delta" and not cut and events.mergeable(last, event):
            events.merge_delta(last, event)
        else:
            entries.append(json.loads(json.dumps(event)))
    return entries


def by_item(said: list[Event]) -> dict[str, str]:
    """What the deltas of each item say."""
    ids = {event["item_id"] for event in said if "delta" in event}
    return {id: "".join(event.get("delta", "") for event in said if event.get("item_id") == id) for id in ids}


@given(pieces, st.booleans(), st.integers(-1, 60))
def test_a_replay_is_the_rest_of_the_whole(spoken: list[tuple[str, str]], background: bool, after: int) -> None:
    log = log_of(spoken)
    whole = check_sequence(told(log, background=background))
    view = ResponsesView(record_of(background=background), after)
    frames = view.opening() + [frame for event in log for frame in view.frames(event)]
    assert [json.loads(data) for _, data in frames] == whole[after + 1 :]


@given(pieces, st.data())
def test_however_entries_are_merged_the_text_is_the_same(spoken: list[tuple[str, str]], data: st.DataObject) -> None:
    log = log_of(spoken)
    cuts = data.draw(st.lists(st.booleans(), min_size=len(log), max_size=len(log)))
    one, other = told(log), check_sequence(told(merged(log, cuts)))
    assert one[-1]["response"] == other[-1]["response"]
    assert by_item(one) == by_item(other)


@given(pieces)
def test_the_response_of_the_record_is_that_of_the_stream(spoken: list[tuple[str, str]]) -> None:
    log = log_of(spoken)
    aggregate = Aggregate()
    for event in log:
        aggregate.add(event)
    assert aggregate.end
    assert whole(record_of(), aggregate.result(), aggregate.end) == told(log)[-1]["response"]
