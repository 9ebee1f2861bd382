"""The log files of `tailrace up`'s children, and what a child said last."""

import re
from pathlib import Path

_TAIL_BYTES = 65_536

# A line of ours on level error or critical (common/logs.py), or the command line's own last word.
_COMPLAINT = re.compile(r"(?:\S+ \S+ [EC] \S+ \S+: |error: )(?P<message>.+)")
# What our log format and vLLM's put before the message.
_PREFIX = re.compile(r"\S+ \S+ [DIWEC] \S+ \S+: |(?:\(.+?\) )?[A-Z]+ \d\d-\d\d \d\d:\d\d:\d\d \[.+?\] ")


def rotate(log: Path) -> None:
    """Make room for a new run's log, keeping the one before as `<name>.log.old`."""
    log.parent.mkdir(parents=True, exist_ok=True)
    if log.exists():
        log.replace(log.with_name(log.name + ".old"))


def last_line(log: Path) -> str:
    """The newest line that says anything, without time and place; empty when there is none."""
    lines = _tail(log)
    if not lines:
        return ""
    prefix = _PREFIX.match(lines[-1])
    return lines[-1][prefix.end() :] if prefix else lines[-1]


def last_words(log: Path) -> str:
    """Why a process ended, as far as its log tells: its last complaint, else its last line."""
    lines = _tail(log)
    complaints = [found["message"] for line in lines if (found := _COMPLAINT.match(line))]
    return (complaints or lines or ["it left no word"])[-1]


def _tail(log: Path) -> list[str]:
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _TAIL_BYTES))
            text = file.read().decode(errors="replace")
    except FileNotFoundError:
        return []
    return [line.strip() for line in text.splitlines() if line.strip()]
