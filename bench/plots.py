"""The plots of docs/performance.md."""

from collections.abc import Callable
from pathlib import Path

import matplotlib as mpl
from matplotlib import pyplot
from matplotlib.axes import Axes

from bench.scenarios.load import PLOT_PERCENTILES
from bench.store import Store

mpl.use("Agg")
SIZE = (7.5, 3.6)
PARTS = ("api", "redis", "worker")


def draw(store: Store, folder: Path) -> dict[str, list[str]]:
    """Writes what can be drawn from the results. Returns file names by scenario."""
    drawn: dict[str, list[str]] = {}
    for scenario, name, plot in PLOTS:
        if scenario in store.scenarios:
            figure, axes = pyplot.subplots(figsize=SIZE)
            plot(store, scenario, axes)
            axes.grid(visible=True, alpha=0.3)
            figure.tight_layout()
            figure.savefig(folder / f"{name}.png", dpi=110, metadata={"Software": None})
            pyplot.close(figure)
            drawn.setdefault(scenario, []).append(f"{name}.png")
    return drawn


def _latency(store: Store, scenario: str, axes: Axes) -> None:
    for variant in store.figures(scenario):
        series = store.series(scenario, variant, "added_ms")
        axes.plot(range(len(series)), series, marker="o", label=variant)
    axes.set_xticks(range(len(PLOT_PERCENTILES)), [f"p{share:g}" for share in PLOT_PERCENTILES])
    axes.set_yscale("log")
    axes.set_ylabel("added latency per token, ms")
    axes.legend()


def _cpu(store: Store, scenario: str, axes: Axes) -> None:
    measured = store.figures(scenario)
    left = [0.0] * len(measured)
    for part in PARTS:
        widths = [figures.get(f"cpu_{part}_us", 0.0) for figures in measured.values()]
        axes.barh(list(measured), widths, left=left, label="worker and engine" if part == "worker" else part)
        left = [a + b for a, b in zip(left, widths, strict=True)]
    axes.invert_yaxis()
    axes.set_xlabel("CPU per token, µs")
    axes.legend()


def _shares(series: str, unit: str) -> Callable[[Store, str, Axes], None]:
    """Share of all that took at most so long."""

    def plot(store: Store, scenario: str, axes: Axes) -> None:
        for variant in store.figures(scenario):
            values = store.series(scenario, variant, series)
            axes.plot(values, [(k + 1) / len(values) * 100 for k in range(len(values))], label=variant)
        axes.set_xlabel(unit)
        axes.set_ylabel("% of requests at most")
        axes.legend()

    return plot


def _cancels(store: Store, scenario: str, axes: Axes) -> None:
    for series, name in (("cancel_ms", "cancel request"), ("leave_ms", "client leaves")):
        values = store.series(scenario, "tailrace", series)
        axes.plot(values, [(k + 1) / len(values) * 100 for k in range(len(values))], label=name)
    axes.set_xlabel("ms until the engine aborts")
    axes.set_ylabel("% of cancels at most")
    axes.legend()


def _rss(store: Store, scenario: str, axes: Axes) -> None:
    for variant in store.figures(scenario):
        axes.plot(store.series(scenario, variant, "rss_mb"), label=variant)
    axes.set_xlabel("seconds")
    axes.set_ylabel("RSS of the API process, MB")
    axes.set_ylim(bottom=0)
    axes.legend()


PLOTS: tuple[tuple[str, str, Callable[[Store, str, Axes], None]], ...] = (
    ("load_300", "load_300_latency", _latency),
    ("load_300", "load_300_cpu", _cpu),
    ("load_30", "load_30_latency", _latency),
    ("cancel", "cancel", _cancels),
    ("abandoned", "abandoned_ttft", _shares("ttft_s", "seconds to the first token")),
    ("frozen", "frozen_rss", _rss),
    ("scaling", "scaling_latency", _latency),
)
