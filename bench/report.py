"""docs/performance.md: tables and plots between two marks; what people wrote around them stays."""

from pathlib import Path

from bench import plots
from bench.scenario import Figures, Scenario
from bench.scenarios.catalog import SCENARIOS
from bench.store import FOLDER, Store
from bench.targets import verdicts
from bench.verdict import Verdict, number

PAGE = FOLDER.parent / "performance.md"
BEGIN, END = "<!-- bench: begin -->", "<!-- bench: end -->"


def write(store: Store) -> Path:
    """The page and its plots, from all results there are. Raises ValueError when the page has lost its marks."""
    before, begin, rest = PAGE.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"{PAGE.name} must contain {BEGIN} and {END}")
    PAGE.write_text(f"{before}{BEGIN}\n\n{_generated(store)}\n{END}{after}")
    return PAGE


def _generated(store: Store) -> str:
    known = [scenario for scenario in SCENARIOS if scenario.name in store.scenarios]
    parts = ["## Machine\n", _table(["", ""], [[label, value] for label, value in store.machine.items()])]
    parts += ["## Targets\n", _targets(store, known)]
    drawn = plots.draw(store, FOLDER)
    for scenario in known:
        parts += _section(store, scenario, drawn.get(scenario.name, []))
    return "\n".join(parts)


def _targets(store: Store, known: list[Scenario]) -> str:
    rows = [
        [verdict.target.text, *_cells(verdict), f"[{scenario.name}](#{scenario.name})"]
        for scenario in known
        for verdict in verdicts(scenario.name, store.figures(scenario.name))
    ]
    return _table(["", "target", "measured", "", "scenario"], rows)


def _cells(verdict: Verdict) -> list[str]:
    margin = verdict.margin if verdict.met else f"**{verdict.margin}**"
    return [verdict.limit, f"{number(verdict.value)} {verdict.target.unit}".rstrip(), margin]


def _section(store: Store, scenario: Scenario, images: list[str]) -> list[str]:
    kept = store.scenarios[scenario.name]
    rounds = "one run" if kept["rounds"] == 1 else f"medians of {kept['rounds']} alternating runs"
    wrong = sum(result["wrong"] for result in kept["results"].values())
    return [
        f"### {scenario.name}\n",
        f"{scenario.title}. {scenario.about}\n",
        f'`make bench ARGS="--only {scenario.name}"`; {rounds}, {kept["date"]}, commit {kept["commit"]}; '
        f"{wrong} tokens lost, doubled, reordered or false.\n",
        figures_table(store.figures(scenario.name)),
        *(f"![{scenario.title}](performance/{image})\n" for image in images),
    ]


def figures_table(measured: dict[str, Figures]) -> str:
    """One row for each figure, one column for each variant."""
    names = list(dict.fromkeys(name for figures in measured.values() for name in figures))
    rows = [[label(name), *(_cell(figures, name) for figures in measured.values())] for name in names]
    return _table(["", *measured], rows)


def label(figure: str) -> str:
    """`added_p50_ms` as people write it."""
    words, _, unit = figure.rpartition("_")
    units = {"ms": "ms", "us": "µs/token", "pct": "%", "kb": "KB", "mb": "MB", "s": "s"}
    if unit not in units:
        return figure.replace("_", " ")
    if words.endswith("_per"):
        return figure.removesuffix("_per_s").replace("_", " ") + "/s"
    return f"{words.replace('_', ' ').replace('cpu', 'CPU')}, {units[unit]}"


def _cell(figures: Figures, name: str) -> str:
    return number(figures[name]) if name in figures else ""


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)
