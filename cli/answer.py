"""Showing an answer while it is being made."""

import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from cli.failure import Failure
from cli.sse import SseEvent

CANCELLED_EXIT_CODE = 3

# A model's text must not be able to drive the terminal: no control characters but tab and newline.
_HARMLESS = {code: None for code in (*range(32), *range(127, 160)) if chr(code) not in "\t\n"}


def _faint(text: str) -> str:
    return f"\x1b[2m{text.translate(_HARMLESS)}\x1b[22m" if text else ""


@dataclass
class Answer:
    """What came so far. `cursor` is where a later attach can go on; `end` is the final event once it came."""

    text: str = ""
    cursor: str | None = None
    end: dict[str, Any] = field(default_factory=dict)

    def show(self, events: Iterable[SseEvent]) -> None:
        """Write the first choice's text to stdout as it comes; on a terminal also what the model thinks."""
        on_terminal = sys.stdout.isatty()
        for event in events:
            if event.name == "delta" and event.json["index"] == 0:
                piece = event.json.get("content") or ""
                self.text += piece
                if on_terminal:
                    piece = _faint(event.json.get("reasoning") or "") + piece.translate(_HARMLESS)
                sys.stdout.write(piece)
                sys.stdout.flush()
            elif event.name == "end":
                self.end = event.json
            self.cursor = event.id or self.cursor

    @property
    def status(self) -> str:
        return str(self.end.get("status"))

    @property
    def summary(self) -> str:
        """The end in a few words."""
        reason = self.end.get("finish_reason")
        tokens = (self.end.get("usage") or {}).get("completion_tokens")
        details = [str(detail) for detail in (reason, tokens and f"{tokens} tokens") if detail]
        return f"{self.status} ({', '.join(details)})" if details else self.status

    def check(self) -> None:
        """Raises Failure when the job failed (exit code 1) or was cancelled (3); an answer cut at its limit is fine."""
        if self.status in ("completed", "incomplete"):
            return
        message = (self.end.get("error") or {}).get("message") or f"The job ended {self.status}."
        raise Failure(message, CANCELLED_EXIT_CODE if self.status == "cancelled" else 1)
