"""Rendering events for a protocol, without a server."""

import json

import msgpack
import pytest

from api.sse import sse_bytes
from api.views.chat import ChatView
from common import events
from common.events import Event, EventId
from common.records import parse_record

FIELDS = {
    "state": "running",
    "model": "100%d",
    "kind": "chat",
    "owner": "alice",
    "attempt": 1,
    "losses": 0,
    "created_ms": 1000,
}
NOTHING = msgpack.packb({})
RECORD = parse_record(
    "chatcmpl-1",
    {
        **{name.encode(): str(value).encode() for name, value in FIELDS.items()},
        b"request": NOTHING,
        b"options": NOTHING,
    },
)


@pytest.mark.parametrize("include_usage", [False, True])
@pytest.mark.parametrize(
    "event",
    [
        events.delta(content='quoted "text"\n\u2028 and 100%d \U0001f600'),
        events.delta(3, content="", token_ids=[1, 2]),
        events.delta(content="the end", finish_reason="stop", stop_reason=None),
        events.delta(role="assistant", content=""),
        events.delta(token_ids=[7]),
    ],
)
def test_a_chunk_is_the_same_whether_it_holds_text_alone_or_more(event: Event, include_usage: bool) -> None:
    view = ChatView(RECORD, include_usage)
    [(name, data)] = view.frames(event)
    assert name is None
    chunk = json.loads(data)
    assert chunk["choices"] == [view.choice(event)]
    assert chunk["model"] == "100%d"
    assert ("usage" in chunk) == include_usage


def test_all_frames_of_an_event_but_the_last_carry_their_number_and_a_resumed_reader_gets_the_rest() -> None:
    frames = [(None, b"a"), ("named", b"b"), (None, b"c")]
    whole = b"id: 1-4.1\ndata: a\n\nid: 1-4.2\nevent: named\ndata: b\n\nid: 1-4\ndata: c\n\n"
    assert sse_bytes(EventId(1, 4), frames) == whole
    assert sse_bytes(EventId(1, 4), frames, skip=1) == whole.partition(b"\n\n")[2]
    assert sse_bytes(EventId(1, 4), frames, skip=9) == b"id: 1-4\ndata: c\n\n"
    assert sse_bytes(None, [("named", b"b")]) == b"event: named\ndata: b\n\n"
