"""Folding a log into the whole answer: what the record keeps and what non-streaming readers get."""

from typing import Any

from common.events import DELTA, END, USAGE, Event

_RANK: dict[str | int, int] = {"reasoning": -3, "refusal": -2, "content": -1}


class _Choice:
    """Parts are kept in lists and joined once: repeated `+=` on a long answer is quadratic."""

    def __init__(self) -> None:
        self.content: list[str] = []
        self.reasoning: list[str] = []
        self.refusal: list[str] = []
        self.tool_calls: dict[int, dict[str, Any]] = {}
        self.logprobs: dict[str, list[Any]] = {}
        self.spans: list[tuple[str | int, int]] = []
        """What was said in which order: a kind of text or a call's index, and for how many characters."""
        self.role: str | None = None
        self.finish_reason: str | None = None
        self.stop_reason: Any = None

    def add(self, event: Event) -> None:
        if event.get("reasoning"):
            self.reasoning.append(event["reasoning"])
            self._span("reasoning", event["reasoning"])
        if event.get("refusal"):
            self.refusal.append(event["refusal"])
            self._span("refusal", event["refusal"])
        if event.get("content"):
            self.content.append(event["content"])
            self._span("content", event["content"])
        for piece in event.get("tool_calls") or ():
            self._add_tool_call(piece)
        for key, values in (event.get("logprobs") or {}).items():
            if values is not None:
                self.logprobs.setdefault(key, []).extend(values)
        self.role = event.get("role", self.role)
        self.finish_reason = event.get("finish_reason", self.finish_reason)
        self.stop_reason = event.get("stop_reason", self.stop_reason)

    def _add_tool_call(self, piece: dict[str, Any]) -> None:
        index = piece.get("index", 0)
        call = self.tool_calls.setdefault(
            index, {"id": None, "type": "function", "function": {"name": "", "arguments": ""}}
        )
        if piece.get("id"):
            call["id"] = piece["id"]
        function = piece.get("function") or {}
        call["function"]["name"] += function.get("name") or ""
        call["function"]["arguments"] += function.get("arguments") or ""
        self._span(index, function.get("arguments") or "")

    def _span(self, what: str | int, text: str) -> None:
        if self.spans and self.spans[-1][0] == what:
            text_before = self.spans.pop()[1]
            self.spans.append((what, text_before + len(text)))
        else:
            self.spans.append((what, len(text)))

    @property
    def in_order(self) -> bool:
        """Whether each kind was said once, and in the order in which one delta says them."""
        ranks = [_RANK.get(what, what) for what, _ in self.spans]
        return ranks == sorted(set(ranks))

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

    A choice is {index, content, reasoning?, refusal?, tool_calls?, logprobs?, finish_reason, stop_reason?, spans?}.
    `spans` says in which order, if it was another than that of one delta. Holds one answer's text, no more.
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
        choices = [
            choice.result(index) | ({} if choice.in_order else {"spans": choice.spans})
            for index, choice in sorted(self._choices.items())
        ]
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
    """The deltas that say a kept result: one per choice, more where kinds alternate. For readers of no log."""
    role = {"role": "assistant"} if kind == "chat" else {}
    return [
        {"type": DELTA, **role, **delta}
        for choice in result.get("choices", ())
        for delta in (_alternating(choice) if "spans" in choice else [_as_pieces(choice)])
    ]


def _as_pieces(choice: dict[str, Any]) -> dict[str, Any]:
    """The choice with its tool calls as a stream tells them: each with its index."""
    calls = choice.get("tool_calls")
    return {**choice, "tool_calls": [{"index": i, **call} for i, call in enumerate(calls)]} if calls else choice


def _alternating(choice: dict[str, Any]) -> list[dict[str, Any]]:
    """One delta per span; the rest of the choice comes with the last."""
    indexes = sorted({what for what, _ in choice["spans"] if isinstance(what, int)})
    calls = dict(zip(indexes, choice.get("tool_calls") or (), strict=True))
    said: dict[str | int, int] = {}
    deltas: list[dict[str, Any]] = []
    for what, size in choice["spans"]:
        start = said.get(what, 0)
        span = slice(start, start + size)
        if isinstance(what, str):
            deltas.append({"index": choice["index"], what: choice[what][span]})
        else:
            piece = _call_piece(calls[what], span, first=what not in said)
            deltas.append({"index": choice["index"], "tool_calls": [{"index": what, **piece}]})
        said[what] = span.stop
    rest = {k: v for k, v in choice.items() if k not in (*_RANK, "tool_calls", "spans")}
    return [*deltas[:-1], {**rest, **deltas[-1]}]


def _call_piece(call: dict[str, Any], arguments: slice, *, first: bool) -> dict[str, Any]:
    function = {"arguments": call["function"]["arguments"][arguments]}
    return {**call, "function": {**call["function"], **function}} if first else {"function": function}
