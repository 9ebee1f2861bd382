"""A target, and whether it was reached."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from bench.scenario import Figures

Measured = Mapping[str, Figures]
"""A scenario's figures by variant."""


@dataclass(frozen=True)
class Target:
    name: str
    scenario: str
    text: str
    limit: float
    unit: str
    value: Callable[[Measured], float]
    at_least: bool = False

    def verdict(self, measured: Measured) -> "Verdict":
        """Raises KeyError when the run does not have what the target needs."""
        return Verdict(self, self.value(measured))


@dataclass(frozen=True)
class Verdict:
    target: Target
    value: float

    @property
    def met(self) -> bool:
        """NaN, a figure that could not be had, is a miss."""
        return self.value >= self.target.limit if self.target.at_least else self.value <= self.target.limit

    @property
    def margin(self) -> str:
        """How far from the limit, in percent of it; a limit of 0 has no percent."""
        if not self.target.limit:
            return "met" if self.met else f"missed by {number(self.value)}"
        share = (self.value / self.target.limit - 1) * (100 if self.target.at_least else -100)
        return f"{'met' if self.met else 'missed'} by {abs(share):.0f} %"

    @property
    def limit(self) -> str:
        return f"{'≥' if self.target.at_least else '≤'} {number(self.target.limit)} {self.target.unit}".rstrip()


def number(value: float) -> str:
    """Three significant digits, and all digits before the point."""
    if value != value:
        return "none"
    if abs(value) >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"
