"""What goes wrong and when: drawn from the seed alone, so that a run can be repeated."""

import random
from dataclasses import dataclass
from typing import Literal

FaultKind = Literal[
    "kill worker",
    "stop worker",
    "term worker",
    "break engine",
    "kill pod",
    "stop pod",
    "term pod",
    "restart redis",
    "stop redis",
    "starve redis",
    "kill clients",
    "pause redis",
    "cut link",
    "hold link",
    "mute link",
    "slow link",
]

# How often, and the shortest and longest time that it lasts. The lease is a second: a stop may be shorter or longer.
_KINDS: dict[FaultKind, tuple[int, float, float]] = {
    "kill worker": (28, 0, 0),
    "stop worker": (14, 0.5, 4),
    "term worker": (10, 0, 0),
    "break engine": (8, 0, 0),
    "kill pod": (10, 0, 0),
    "stop pod": (4, 0.5, 4),
    "term pod": (6, 0, 0),
    "restart redis": (4, 0, 1.5),
    # Longer than a client's timeout of 5 s, too: then commands are repeated that Redis carries out later.
    "stop redis": (3, 0.5, 7),
    # OOM: Redis answers, reads and refuses to write.
    "starve redis": (4, 0.2, 3),
    "kill clients": (6, 0, 0),
    "pause redis": (3, 0.2, 2),
    "cut link": (5, 0.2, 3),
    "hold link": (7, 0.5, 4),
    "mute link": (8, 0.05, 1),
    "slow link": (3, 0.5, 4),
}
_GAP_SECONDS = (0.8, 2.8)
_CALM_SECONDS = 1.0
"""Without faults at both ends: the first jobs must run, and the last fault must hit something."""


@dataclass(frozen=True, slots=True)
class Fault:
    at: float
    kind: FaultKind
    target: int
    """Which worker, pod or link; taken modulo how many there are."""
    seconds: float

    def __str__(self) -> str:
        lasting = f" for {self.seconds:.2f} s" if self.seconds else ""
        return f"{self.at:7.2f}  {self.kind} {self.target if self.target_counts else ''}{lasting}"

    @property
    def target_counts(self) -> bool:
        return self.kind.split()[1] in ("worker", "pod", "link", "engine")


def draw(seed: int, seconds: float, targets: dict[str, int]) -> list[Fault]:
    """`targets`: how many workers, pods and links there are."""
    rng = random.Random(f"faults {seed}")
    kinds = list(_KINDS)
    weights = [_KINDS[kind][0] for kind in kinds]
    faults = []
    at = _CALM_SECONDS + rng.uniform(0, 1)
    while at < seconds - _CALM_SECONDS:
        (kind,) = rng.choices(kinds, weights)
        _, shortest, longest = _KINDS[kind]
        many = targets.get({"engine": "worker"}.get(kind.split()[1], kind.split()[1]), 1)
        faults.append(Fault(round(at, 2), kind, rng.randrange(many), round(rng.uniform(shortest, longest), 2)))
        at += rng.uniform(*_GAP_SECONDS)
    return faults
