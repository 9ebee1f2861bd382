"""The serving layer's SSE chunks as canonical events."""

import json
from collections.abc import Iterator
from typing import Any, Protocol

from common.events import Event, delta, usage
from workers.engines.base import EngineFailed
from workers.engines.chunk import delta_of, says_something
from workers.engines.vllm.delivered import Delivered

_FROM_TOKENS = ("content", "reasoning", "tool_calls", "logprobs", "finish_reason")


class TokenRecord(Protocol):
    """What a reader must know about the generation behind the chunks."""

    prompt_tokens: int
    replaying: bool
    failure: Exception | None

    def take_ids(self, choice: int) -> list[int]: ...

    def choices_left(self) -> list[int]: ...


class ChunkReader:
    """Reads the chunks of one answer in order; `delivered` is what its readers already have."""

    def __init__(self, record: TokenRecord, delivered: Event) -> None:
        self._record = record
        self._delivered = Delivered(delivered)
        self._started = False

    def events(self, frame: str) -> Iterator[Event]:
        """The events of one SSE frame.

        Raises the exception that the serving layer hid behind an error chunk, or EngineFailed when it was its own.
        """
        data = frame.removeprefix("data: ").strip()
        if data == "[DONE]":
            return
        chunk = json.loads(data)
        if error := chunk.get("error"):
            raise self._record.failure or EngineFailed(error["message"])
        if not self._started:
            self._started = True
            yield _prompt_usage(self._record.prompt_tokens)
        for choice in chunk["choices"]:
            yield from self._delta(choice)
        if chunk.get("usage"):
            yield from self._leftovers()
            yield usage(chunk["usage"])

    def _delta(self, choice: dict[str, Any]) -> Iterator[Event]:
        event = delta_of(choice)
        self._delivered.drop_from(event, replayed=self._record.replaying)
        # Ids of text that is held back (half a character, the start of a stop string) wait for the delta that
        # brings it: ids in the log never run ahead of the text that a continuation would begin with.
        if any(key in event for key in _FROM_TOKENS) and (ids := self._record.take_ids(event["index"])):
            event["token_ids"] = ids
        if says_something(event):
            yield event

    def _leftovers(self) -> Iterator[Event]:
        for choice in self._record.choices_left():
            yield delta(choice, token_ids=self._record.take_ids(choice))


def _prompt_usage(tokens: int) -> Event:
    return usage({"prompt_tokens": tokens, "completion_tokens": 0, "total_tokens": tokens})
