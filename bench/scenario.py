"""What a scenario is, and how its variants are run: one after the other, round by round, and the medians kept.

Alternating the variants spreads whatever the machine does meanwhile over all of them.
"""

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

Figures = dict[str, float]
"""Named figures of one run; the name ends with the unit."""


@dataclass(frozen=True)
class Options:
    """How a run is asked for. `quick`: smaller and shorter, for a look and for CI."""

    quick: bool = False
    apis: int = 1
    profile: str = ""
    """`api` or `worker`: run py-spy on it while the load runs."""


@dataclass
class Result:
    """Of one run, or the medians of several."""

    figures: Figures
    wrong: int = 0
    """Tokens lost, doubled, reordered or false."""
    failures: list[str] = field(default_factory=list)
    series: dict[str, list[float]] = field(default_factory=dict)
    """For plots."""


Variant = Callable[[Options], Result]


@dataclass(frozen=True)
class Scenario:
    name: str
    title: str
    about: str
    """How it is measured, for the report."""
    variants: Mapping[str, Variant]
    rounds: int = 3
    quick_variants: tuple[str, ...] = ()
    """Those that a quick run has; none: all."""
    needs_vllm: bool = False

    def run(self, options: Options, say: Callable[[str], None]) -> dict[str, Result]:
        chosen = self.quick_variants if options.quick and self.quick_variants else tuple(self.variants)
        runs: dict[str, list[Result]] = {name: [] for name in chosen}
        for n in range(1 if options.quick else self.rounds):
            for name in chosen:
                say(f"{self.name}: {name}, round {n + 1}")
                runs[name].append(self.variants[name](options))
        return {name: median(results) for name, results in runs.items()}


def median(results: list[Result]) -> Result:
    """Each figure's median; wrong tokens and failures of all runs; the series of the last."""
    names = results[0].figures
    return Result(
        {name: statistics.median(result.figures[name] for result in results) for name in names},
        sum(result.wrong for result in results),
        [failure for result in results for failure in result.failures],
        results[-1].series,
    )
