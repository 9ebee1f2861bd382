"""The canonical events of a job's log and their position.

An event is a plain dict with a `type`:

    started  {attempt, worker, continuable}
    delta    {index, role?, content?, reasoning?, refusal?, tool_calls?, logprobs?, finish_reason?, stop_reason?,
              token_ids?}
    usage    {usage}
    end      {status, finish_reason?, usage?, error?, timings?}

Events are not any protocol's; `api/views` turns them into chat chunks, completion chunks and so on.
Every delta belongs to one choice (`index`); it may carry many tokens. For a chat, `content` is assistant
text, `tool_calls` a list of OpenAI's streamed tool-call pieces; for a completion, `content` is the text.
`logprobs` has the shape of the endpoint it came from: chat {"content": [...]}, completion
{"tokens": [...], "token_logprobs": [...], "top_logprobs": [...], "text_offset": [...]}.
`token_ids` are the generated ids behind the delta; they make a continuation by another worker possible.
"""

from typing import Any, NamedTuple, Self

import msgpack

Event = dict[str, Any]

STARTED = "started"
DELTA = "delta"
USAGE = "usage"
END = "end"

# Terminal states of a job, the same words in the log, the record and the API.
TERMINAL = frozenset({"completed", "incomplete", "failed", "cancelled"})


class EventId(NamedTuple):
    """Position in a job's log: `<attempt>-<seq>`. Ordered, because Redis orders stream ids the same way."""

    attempt: int
    seq: int

    def __str__(self) -> str:
        return f"{self.attempt}-{self.seq}"

    @classmethod
    def parse(cls, text: str | bytes) -> Self:
        """Raises ValueError when `text` is not `<attempt>-<seq>`."""
        if isinstance(text, bytes):
            text = text.decode("ascii")
        attempt, _, seq = text.partition("-")
        # isascii: str.isdigit alone also accepts digits that Redis does not.
        if not (attempt.isascii() and attempt.isdigit() and seq.isascii() and seq.isdigit()):
            raise ValueError(f"not an event id: {text!r}")
        if len(attempt) > 18 or len(seq) > 18:
            raise ValueError("event id out of range")
        return cls(int(attempt), int(seq))

    @classmethod
    def of_entry(cls, raw: bytes) -> Self:
        """As `parse`, for ids that Redis wrote: without the checks, because a pod does this for every token."""
        attempt, _, seq = raw.partition(b"-")
        return tuple.__new__(cls, (int(attempt), int(seq)))


START = EventId(0, 0)
"""The cursor before the first event."""


def started(attempt: int, worker: str, *, continuable: bool = False) -> Event:
    """The first event of an attempt. `continuable`: its answer can be steered, and taken over in the middle."""
    return {"type": STARTED, "attempt": attempt, "worker": worker, "continuable": continuable}


def delta(index: int = 0, **parts: Any) -> Event:
    return {"type": DELTA, "index": index, **parts}


def usage(counts: dict[str, Any]) -> Event:
    return {"type": USAGE, "usage": counts}


def end(status: str, **parts: Any) -> Event:
    """The last event of a job. `parts`: finish_reason, usage, error, timings; those that are None are left out."""
    if status not in TERMINAL:
        raise ValueError(f"not a terminal status: {status!r}")
    return {"type": END, "status": status, **{k: v for k, v in parts.items() if v is not None}}


_packer = msgpack.Packer()
"""Kept, because msgpack.packb makes a new one, with its buffer, for each call."""


def encode(event: Event) -> bytes:
    packed: bytes = _packer.pack(event)
    return packed


def decode(data: bytes) -> Event:
    event: Event = msgpack.unpackb(data)
    return event


_KINDS = ("reasoning", "refusal", "content", "tool_calls")
"""What a delta may say, in the order in which a reader takes it."""


def token_count(event: Event) -> int:
    """Tokens behind a delta; one with text of an engine that does not tell counts as one."""
    if ids := event.get("token_ids"):
        return len(ids)
    return 1 if any(event.get(kind) for kind in _KINDS) else 0


_CONCATENATED_LOGPROBS = ("content", "refusal", "tokens", "token_logprobs", "top_logprobs", "text_offset")


def merge_delta(into: Event, new: Event) -> None:
    """Append `new` to `into` in place; both are deltas of the same choice, `new` directly after `into`.

    Merging is what makes entries larger instead of more numerous when Redis is slow or the budget is short:
    the merged delta means exactly what the two meant one after the other.
    """
    for key in ("content", "reasoning", "refusal"):
        if key in new:
            into[key] = into.get(key, "") + new[key]
    if "token_ids" in new:
        into.setdefault("token_ids", []).extend(new["token_ids"])
    for piece in new.get("tool_calls") or ():
        _merge_tool_call(into.setdefault("tool_calls", []), piece)
    for key in ("role", "finish_reason", "stop_reason"):
        if key in new:
            into[key] = new[key]
    if new.get("logprobs"):
        _merge_logprobs(into, new["logprobs"])


def _merge_tool_call(pieces: list[dict[str, Any]], new: dict[str, Any]) -> None:
    """At most one piece per call, as OpenAI streams them: LangChain takes two of one call in a chunk for two calls."""
    for i, old in enumerate(pieces):
        if old.get("index") == new.get("index"):
            function = dict(old.get("function") or {})
            for key, text in (new.get("function") or {}).items():
                function[key] = (function.get(key) or "") + (text or "")
            said = {key: value for key, value in new.items() if value is not None}
            pieces[i] = {**old, **said, "function": function}
            return
    pieces.append(new)


def _merge_logprobs(into: Event, new: dict[str, Any]) -> None:
    old = into.setdefault("logprobs", {})
    for key in _CONCATENATED_LOGPROBS:
        if new.get(key) is not None:
            old[key] = [*(old.get(key) or []), *new[key]]


def mergeable(first: Event, second: Event) -> bool:
    """Whether `second` may be folded into `first` without changing what a reader concatenates.

    Within one delta a reader takes reasoning before content before tool calls, so a delta that goes back to an
    earlier kind must stay an entry of its own.
    """
    return first["index"] == second["index"] and _last_kind(first) <= _first_kind(second)


def _last_kind(event: Event) -> int:
    return max((i for i, kind in enumerate(_KINDS) if event.get(kind)), default=0)


def _first_kind(event: Event) -> int:
    return min((i for i, kind in enumerate(_KINDS) if event.get(kind)), default=len(_KINDS))
