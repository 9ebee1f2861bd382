"""Checks against the OpenAI SDK's own types, and logs without a system behind them."""

from collections.abc import Iterable
from typing import Any, get_args

import msgpack
from openai import AsyncOpenAI
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import BaseModel

from api.responses.body import parse_response_body
from api.responses.items import messages_of, parse_items
from api.responses.translate import chat_body, kept
from common.events import Event
from common.records import JobRecord, JobRequest, parse_record, request_fields
from tests.support.client import MODEL, Client, answer_to, chat, sse_events

TERMINAL = ("response.completed", "response.incomplete", "response.failed")
_EVENTS: dict[str, type[BaseModel]] = {
    model.model_fields["type"].annotation.__args__[0]: model for model in get_args(get_args(ResponseStreamEvent)[0])
}


def sdk(url: str, **options: Any) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=60, **options)


def check_event(event: dict[str, Any]) -> dict[str, Any]:
    """Fails unless the SDK knows the event, all of its fields, and misses none."""
    _check(_EVENTS[event["type"]], event)
    return event


def check_response(response: dict[str, Any]) -> dict[str, Any]:
    _check(Response, response)
    return response


def _check(model: type[BaseModel], data: dict[str, Any]) -> None:
    parsed = model.model_validate(data, strict=True)
    _no_extras(parsed, type(parsed).__name__)


def _no_extras(value: Any, where: str) -> None:
    if isinstance(value, BaseModel):
        assert not value.model_extra, f"{where}: unknown fields {value.model_extra}"
        for name in value.model_fields_set:
            _no_extras(getattr(value, name), f"{where}.{name}")
    elif isinstance(value, list):
        for item in value:
            _no_extras(item, where)


def check_sequence(events: list[dict[str, Any]], first: int = 0) -> list[dict[str, Any]]:
    """Contiguous numbers, valid events, one terminal event, and that the last."""
    assert [event["sequence_number"] for event in events] == list(range(first, first + len(events)))
    for event in events:
        check_event(event)
    assert [event["type"] in TERMINAL for event in events] == [False] * (len(events) - 1) + [True]
    return events


def text_of(events: Iterable[dict[str, Any]], kind: str = "output_text") -> str:
    return "".join(event["delta"] for event in events if event["type"] == f"response.{kind}.delta")


def record_of(end: Event | None = None, **body: Any) -> JobRecord:
    """The record of a response that was asked for with `body`, as Redis would have it."""
    parsed = parse_response_body({"model": "m", "input": "hi", **body})
    items = parse_items(parsed.input)
    chat = chat_body(parsed, messages_of(items))
    request = JobRequest("resp_ab", "chat", "m", "me", chat, response=kept(parsed, items))
    flat = request_fields(request)
    raw = {name.encode(): value if isinstance(value, bytes) else str(value).encode() for name, value in _pairs(flat)}
    raw |= {b"state": b"running", b"attempt": b"1", b"losses": b"0", b"created_ms": b"1700000000250"}
    if end:
        raw |= {b"state": end["status"].encode(), b"timings": msgpack.packb(end.get("timings"))}
    return parse_record(request.id, raw)


def _pairs(flat: list[Any]) -> list[tuple[str, Any]]:
    return list(zip(flat[::2], flat[1::2], strict=True))


def asked(prompt: str = "hello", tokens: int = 8, **more: Any) -> dict[str, Any]:
    return {"model": MODEL, "input": prompt, "max_output_tokens": tokens, **more}


def answer_to_input(prompt: str, tokens: int) -> str:
    """The simulated engine's text for a response that was asked for with a plain string."""
    return answer_to(chat(prompt, tokens))


async def read(client: Client, method: str, path: str, stop_after: int | None = None, **options: Any) -> list[Event]:
    """Events of a stream, checked on the wire; all of them, or `stop_after`, after which the connection is cut."""
    heard: list[Event] = []
    async with client.stream(method, path, **options) as response:
        if response.status_code != 200:
            await response.aread()
        assert response.status_code == 200, response.text
        assert response.headers["content-type"].startswith("text/event-stream")
        async for event in sse_events(response):
            assert event.id is None
            assert event.event == event.json["type"]
            heard.append(check_event(event.json))
            if len(heard) == stop_after:
                break
    return heard
