"""What was found and counted. A finding is printed at once, so that it stands beside the fault that caused it."""

import statistics
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Literal

from tests.chaos.plan import Plan

Harm = Literal["lost", "doubled", "reordered", "hung", "leaked"]
HARMS: tuple[Harm, ...] = ("lost", "doubled", "reordered", "hung", "leaked")


@dataclass
class LogFacts:
    """What the audit saw of one job."""

    tokens: int
    status: str
    attempts: int
    """Attempts that wrote `started`."""
    mid_answer: int
    """Attempts after the first that found a part of the answer in the log and went on with it."""
    said: int
    """Tokens in the log, over all attempts."""


@dataclass
class Ledger:
    seed: int
    started: float = field(default_factory=time.monotonic)
    harms: Counter[Harm] = field(default_factory=Counter)
    findings: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    plans: dict[str, Plan] = field(default_factory=dict)
    """Every job id that anybody knows of."""
    audited: dict[str, LogFacts] = field(default_factory=dict)
    leaked_keys: int = 0
    leaked_processes: int = 0
    latencies: dict[str, list[float]] = field(default_factory=dict)
    _struck: dict[str, tuple[str, int, float]] = field(default_factory=dict)

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self.started

    def say(self, text: str) -> None:
        print(f"{self.elapsed:7.2f}  {text}", flush=True)

    def find(self, harm: Harm, what: str, count: int = 1) -> None:
        self.harms[harm] += count
        self.findings += 1
        self.say(f"FOUND {harm}: {what}")

    def struck(self, job_id: str, attempt: int, how: str) -> None:
        """The worker or engine that runs this attempt dies now."""
        self._struck[job_id] = how, attempt, time.monotonic()

    def heard(self, job_id: str, attempt: int) -> None:
        """A reader has a token of this attempt."""
        if (struck := self._struck.get(job_id)) and attempt > struck[1]:
            del self._struck[job_id]
            self.latencies.setdefault(struck[0], []).append(time.monotonic() - struck[2])

    @property
    def takeovers(self) -> int:
        return sum(max(0, facts.attempts - 1) for facts in self.audited.values())

    def table(self) -> str:
        audited = self.audited.values()
        rows: list[tuple[str, object]] = [
            ("jobs", len(self.plans)),
            ("attempts", sum(facts.attempts for facts in audited)),
            ("takeovers", self.takeovers),
            ("  in mid-answer", sum(facts.mid_answer for facts in audited)),
            ("  most of one job", max((facts.attempts - 1 for facts in audited), default=0)),
            ("tokens checked", self.counts["tokens"]),
            ("tokens in logs checked", sum(facts.said for facts in audited)),
            *((name, count) for name, count in sorted(self.counts.items()) if name != "tokens"),
            *((harm, self.harms[harm]) for harm in ("lost", "doubled", "reordered", "hung")),
            ("leaked keys", self.leaked_keys),
            ("leaked processes", self.leaked_processes),
            *((f"status {status}", n) for status, n in sorted(Counter(facts.status for facts in audited).items())),
        ]
        for how, seconds in sorted(self.latencies.items()):
            took = f"{statistics.median(seconds):.2f} / {max(seconds):.2f} s of {len(seconds)}"
            rows.append((f"{how} to next token, median / max", took))
        return "\n".join(f"| {name:<50} | {value!s:>24} |" for name, value in rows)

    def last_line(self) -> str:
        harms = " ".join(f"{harm}={self.harms[harm]}" for harm in HARMS)
        return (
            f"chaos: seed={self.seed} jobs={len(self.plans)} takeovers={self.takeovers} "
            f"tokens={self.counts['tokens']} {harms}"
        )
