"""Reading SSE however the network cuts it."""

import pytest

from cli.sse import SseEvent, events

STREAM = (
    ": keepalive\n\n"
    'id: 1-1\nevent: delta\ndata: {"a": "\u2028 \u00fc"}\r\n\r\n'
    "retry: 500\n\n"
    "data: x\ndata: y\n\n"
    "id: 1-9\ndata: cu"
)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_the_same_events_in_any_chunks(size: int) -> None:
    data = STREAM.encode()
    chunks = [data[i : i + size] for i in range(0, len(data), size)]
    assert list(events(chunks)) == [
        SseEvent("delta", '{"a": "\u2028 \u00fc"}', id="1-1"),
        SseEvent("message", "", retry=500),
        SseEvent("message", "x\ny"),
    ]
