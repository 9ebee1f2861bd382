"""Folding a log into the whole answer: what the record keeps and what non-streaming readers get."""

from typing import Any

from common.events import DELTA, END, USAGE, Event


class _Choice:
    """Parts are kept in lists and joined once: repeated `+=` on a long answer is quadratic."""

    def __init__(self) -> None:
        self.content: list[str] = []
        self.reasoning: list[str] = []
        self.refusal: list[str] = []
        self.tool_calls: dict[int, dict[str, Any]] = {}
        self.logprobs: dict[str, list[Any]] = {}
        self.role: str | None = None
        self.finish_reason: str | None = None
        self.stop_reason: Any = None

    def add(self, event: Event) -> None:
        if event.get("content"):
            self.content.append(event["content"])
        if event.get("reasoning"):
            self.reasoning.append(event["reasoning"])
        if event.get("refusal"):
            self.refusal.append(event["refusal"])
        for piece in event.get("tool_calls") or ():
            self._add_tool_call(piece)
        for key, values in (event.get("logprobs") or {}).items():
            if values is not None:
                self.logprobs.setdefault(key, []).extend(values)
        self.role = event.get("role", self.role)
        self.finish_reason = event.get("finish_reason", self.finish_reason)
        self.stop_reason = event.get("stop_reason", self.stop_reason)

    def _add_tool_call(self, piece: dict[str, Any]) -> None:
        call = self.tool_calls.setdefault(
            piece.get("index", 0), {"id": None, "type": "function", "function": {"name": "", "arguments": ""}}
        )
        if piece.get("id"):
            call["id"] = piece["id"]
        function = piece.get("function") or {}
        call["function"]["name"] += function.get("name") or ""
        call["function"]["arguments"] += function.get("arguments") or ""

    def result(self, index: int) -> dict[str, Any]:
        whole: dict[str, Any] = {"index": index, "content": "".join(self.content), "finish_reason": self.finish_reason}
        if self.reasoning:
            whole["reasoning"] = "".join(self.reasoning)
        if self.refusal:
            whole["refusal"] = "".join(self.refusal)
        if self.tool_calls:
            whole["tool_calls"] = [call for _, call in sorted(self.tool_calls.items())]
        if self.logprobs:
            whole["logprobs"] = self.logprobs
        if self.stop_reason is not None:
            whole["stop_reason"] = self.stop_reason
        return whole


class Aggregate:
    """`add` every event of a log in order; `result` is `{"choices": [...], "usage": ...}`.

    A choice is {index, content, reasoning?, refusal?, tool_calls?, logprobs?, finish_reason, stop_reason?}.
    Holds one answer's text, no more.
    """

    def __init__(self) -> None:
        self._choices: dict[int, _Choice] = {}
        self.usage: dict[str, Any] | None = None
        self.end: Event | None = None

    def add(self, event: Event) -> None:
        kind = event["type"]
        if kind == DELTA:
            choice = self._choices.get(event["index"])
            if choice is None:
                choice = self._choices[event["index"]] = _Choice()
            choice.add(event)
        elif kind == USAGE:
            self.usage = event["usage"]
        elif kind == END:
            self.end = event
            self.usage = event.get("usage", self.usage)

    def result(self) -> dict[str, Any]:
        choices = [choice.result(index) for index, choice in sorted(self._choices.items())]
        return {"choices": choices, "usage": self.usage}

    def delivered(self) -> Event:
        """The deltas of choice 0 so far, merged into one delta: what a continuation must not say again."""
        choice = self._choices[0]
        merged = {name: value for name, value in choice.result(0).items() if value not in (None, "")}
        if choice.role:
            merged["role"] = choice.role
        if choice.tool_calls:
            merged["tool_calls"] = [{"index": index, **call} for index, call in sorted(choice.tool_calls.items())]
        return {"type": DELTA, **merged}

    @property
    def finish_reason(self) -> str | None:
        """Of the first choice, as the record shows it."""
        first = self._choices.get(0)
        return first.finish_reason if first else None

    @property
    def empty(self) -> bool:
        return not self._choices


def as_deltas(result: dict[str, Any], kind: str) -> list[Event]:
    """The deltas that say a kept result in one event per choice: for readers whose stream has expired."""
    role = {"role": "assistant"} if kind == "chat" else {}
    return [{"type": DELTA, **role, **choice} for choice in result.get("choices", ())]
