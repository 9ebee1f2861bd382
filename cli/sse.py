"""Reading Server-Sent Events from the chunks of an HTTP response."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class SseEvent:
    """`retry` is in milliseconds; an event may consist of it alone."""

    name: str
    data: str
    id: str | None = None
    retry: int | None = None

    @property
    def json(self) -> Any:
        return json.loads(self.data)


def events(chunks: Iterable[bytes]) -> Iterator[SseEvent]:
    """The complete events; one that was cut is dropped, as its reader will ask for it again. Comments are skipped."""
    fields: dict[str, list[str]] = {}
    for line in _lines(chunks):
        if line:
            name, _, value = line.partition(":")
            fields.setdefault(name, []).append(value.removeprefix(" "))
        elif fields:
            event = _event(fields)
            fields = {}
            if event.data or event.retry is not None:
                yield event


def _event(fields: dict[str, list[str]]) -> SseEvent:
    def last(name: str) -> str | None:
        return fields[name][-1] if name in fields else None

    retry = last("retry")
    return SseEvent(
        name=last("event") or "message",
        data="\n".join(fields.get("data", [])),
        id=last("id"),
        retry=int(retry) if retry and retry.isdigit() else None,
    )


def _lines(chunks: Iterable[bytes]) -> Iterator[str]:
    # Not httpx's iter_lines: it also splits at U+2028 and others, which JSON may have inside its strings.
    rest = b""
    for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line.removesuffix(b"\r").decode()
