"""What the clients do: job number n of a seed is always the same job with the same readers and the same fate."""

import random
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from tests.support.client import MODEL
from workers.engines.simulated import prompt_text, token_id, token_text

Surface = Literal["job", "chat", "whole", "ws"]
Fate = Literal["finish", "cancel", "delete", "abandon", "cling", "forget"]
"""finish: read to the end. cling: dies with its reader, who always comes back in time. abandon: the reader does not.
forget: nobody ever reads it."""

_FATES: dict[Fate, int] = {"finish": 66, "cancel": 10, "delete": 5, "abandon": 6, "cling": 7, "forget": 6}
_SURFACES: dict[Surface, int] = {"job": 44, "chat": 26, "ws": 22, "whole": 8}
TOKENS = (20, 200)
GRACE_SECONDS = 60
"""Of a job that clings: longer than any reader here is ever kept away."""


@dataclass(frozen=True)
class Plan:
    seed: int
    n: int
    surface: Surface
    fate: Fate
    tokens: int
    body_seed: int
    readers: int
    keyed: bool
    rng: random.Random = field(compare=False)

    @property
    def prompt(self) -> str:
        return f"chaos {self.seed}/{self.n}"

    @property
    def must_finish(self) -> bool:
        return self.fate in ("finish", "cling", "forget")

    @property
    def idempotency_key(self) -> str | None:
        return self.prompt if self.keyed else None

    @cached_property
    def body(self) -> dict[str, Any]:
        options: dict[str, Any] = {"on_disconnect": "cancel" if self.fate in ("abandon", "cling") else "continue"}
        if self.fate == "cling":
            options["grace_seconds"] = GRACE_SECONDS
        return {
            "model": MODEL,
            "messages": [{"role": "user", "content": self.prompt}],
            "max_tokens": self.tokens,
            "seed": self.body_seed,
            "tailrace": options,
        }

    @cached_property
    def expected(self) -> list[str]:
        """The answer, token by token."""
        prompt = prompt_text("chat", self.body)
        return [token_text(i, token_id(prompt, self.body_seed, i)) for i in range(self.tokens)]


def plan(seed: int, n: int) -> Plan:
    rng = random.Random(f"job {seed}/{n}")
    (fate,) = rng.choices(list(_FATES), list(_FATES.values()))
    (surface,) = rng.choices(list(_SURFACES), list(_SURFACES.values()))
    if fate in ("abandon", "cling"):
        surface = rng.choice(["chat", "ws"])
    elif fate == "forget" or (surface == "whole" and fate != "finish"):
        surface = "job"
    return Plan(
        seed=seed,
        n=n,
        surface=surface,
        fate=fate,
        tokens=rng.randint(*TOKENS),
        body_seed=rng.randrange(1000),
        readers=rng.choice([1, 1, 2, 3]) if fate in ("finish", "cancel", "delete") else 1,
        keyed=(rng.random() < 0.5 and _may_be_keyed(surface, fate)) or surface == "whole",
        rng=rng,
    )


def _may_be_keyed(surface: Surface, fate: Fate) -> bool:
    """A delete frees the key, so that a submit which was still under way becomes a second job. A job that is abandoned
    over a socket is so by its first reader: a repeat would find it cancelled."""
    return fate != "delete" and not (surface == "ws" and fate == "abandon")


def number_of(prompt: str) -> int:
    """The n of a prompt that `plan` made."""
    return int(prompt.rpartition("/")[2])
