"""Running requests on an engine and looking at what came back."""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from common.events import Event, merge_delta
from workers.engines.base import GenerationRequest, Resume
from workers.engines.vllm import VllmEngine

Kind = Literal["chat", "completion"]


class Answer(NamedTuple):
    """The events of one request."""

    events: list[Event]

    @property
    def deltas(self) -> list[Event]:
        return [event for event in self.events if event["type"] == "delta"]

    @property
    def usage(self) -> dict[str, Any]:
        assert self.events[-1]["type"] == "usage", "an answer ends with its usage"
        counts: dict[str, Any] = self.events[-1]["usage"]
        return counts

    def whole(self, index: int = 0) -> Event:
        return merged([delta for delta in self.deltas if delta["index"] == index])

    @property
    def text(self) -> str:
        content: str = self.whole().get("content", "")
        return content


def merged(deltas: Sequence[Event]) -> Event:
    into: Event = {}
    for delta in deltas:
        merge_delta(into, delta)
    return into


class Run:
    """`await run("chat", {...})` runs one request to its end."""

    def __init__(self, engine: VllmEngine) -> None:
        self._engine = engine

    async def __call__(self, kind: Kind, body: dict[str, Any], resume: Resume | None = None) -> Answer:
        request = GenerationRequest("job", kind, body)
        return Answer([event async for event in self._engine.generate(request, resume)])


def chat(text: str, **params: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], "temperature": 0, **params}


def completion(prompt: Any, **params: Any) -> dict[str, Any]:
    return {"prompt": prompt, "temperature": 0, **params}
