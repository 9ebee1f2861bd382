"""Drops from a repeated answer what its readers already have."""

from typing import Any

from common.events import Event
from workers.engines.base import EngineFailed


class Delivered:
    """What the log holds of choice 0, consumed as the answer is repeated.

    The repeated text must begin with exactly what was delivered; the new text is the rest.
    """

    def __init__(self, event: Event) -> None:
        self._role = "role" in event
        self._finished = "finish_reason" in event
        self._text = {"content": event.get("content", ""), "reasoning": event.get("reasoning", "")}
        self._calls = _join_calls(event.get("tool_calls", []))
        self._offset = _end_offset(event.get("logprobs") or {})

    def drop_from(self, event: Event, *, replayed: bool) -> None:
        """Edits `event` in place. `replayed`: it comes from recorded ids, whose logprobs were delivered with them.

        Raises EngineFailed when the answer differs from what was delivered: another model or tokenizer.
        """
        if self._role:
            event.pop("role", None)
        if self._finished:
            event.pop("finish_reason", None)
            event.pop("stop_reason", None)
        for kind in ("content", "reasoning"):
            self._drop_text(event, kind)
        if self._calls and "tool_calls" in event:
            pieces = [rest for piece in event.pop("tool_calls") if (rest := self._rest_of_call(piece))]
            event.update({"tool_calls": pieces} if pieces else {})
        if replayed:
            event.pop("logprobs", None)
        elif self._offset is not None:
            self._shift_offsets(event.get("logprobs") or {})

    def _drop_text(self, event: Event, kind: str) -> None:
        if (known := self._text[kind]) and kind in event:
            rest, self._text[kind] = _split(event.pop(kind), known)
            event.update({kind: rest} if rest else {})

    def _rest_of_call(self, piece: dict[str, Any]) -> dict[str, Any] | None:
        """`piece` without what is known of its call; its id is random, so the delivered one stands."""
        if piece["index"] not in self._calls:
            return piece
        new = piece.get("function", {}).get("arguments") or ""
        rest, self._calls[piece["index"]] = _split(new, self._calls[piece["index"]])
        return {"index": piece["index"], "function": {"arguments": rest}} if rest else None

    def _shift_offsets(self, logprobs: dict[str, Any]) -> None:
        # A completion's text_offset: replayed tokens are measured one by one, which is not how they were delivered.
        offsets = logprobs.get("text_offset")
        if offsets and self._offset is not None:
            shift = self._offset - offsets[0]
            logprobs["text_offset"] = [offset + shift for offset in offsets]
            self._offset = logprobs["text_offset"][-1] + len(logprobs["tokens"][-1])


def _split(new: str, known: str) -> tuple[str, str]:
    """What of `new` is beyond `known`, and what of `known` is beyond `new`."""
    if not (known.startswith(new) or new.startswith(known)):
        raise EngineFailed("the answer cannot be continued: its beginning differs from what was delivered")
    return new[len(known) :], known[len(new) :]


def _join_calls(pieces: list[dict[str, Any]]) -> dict[int, str]:
    """Arguments delivered so far, by tool call index."""
    calls: dict[int, str] = {}
    for piece in pieces:
        calls[piece["index"]] = calls.get(piece["index"], "") + (piece.get("function", {}).get("arguments") or "")
    return calls


def _end_offset(logprobs: dict[str, Any]) -> int | None:
    if not logprobs.get("text_offset"):
        return None
    end: int = logprobs["text_offset"][-1] + len(logprobs["tokens"][-1])
    return end
