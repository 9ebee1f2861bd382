"""The log files of `tailrace up`'s children, and what a child said last."""

import re
import textwrap
from itertools import takewhile
from pathlib import Path

_TAIL_BYTES = 65_536
_MOST_CHARS = 400

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
    """Why a process ended, as far as its log tells: its last complaint, else its last line; always one line."""
    lines = _tail(log)
    complaints = [number for number, line in enumerate(lines) if _COMPLAINT.match(line)]
    if not complaints:
        return lines[-1] if lines else "it left no word"
    first, *rest = lines[complaints[-1] :]
    # What vLLM complains of is often on the lines below.
    below = takewhile(lambda line: not _PREFIX.match(line), rest)
    return textwrap.shorten(" ".join([_COMPLAINT.sub(r"\g<message>", first), *below]), _MOST_CHARS, placeholder=" ...")


def _tail(log: Path) -> list[str]:
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _TAIL_BYTES))
            text = file.read().decode(errors="replace")
    except FileNotFoundError:
        return []
    return [line.strip() for line in text.splitlines() if line.strip()]
