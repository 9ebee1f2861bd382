"""The results behind docs/performance.md, kept so that one scenario can be measured again without the others."""

import json
import subprocess
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.scenario import Figures, Result

FOLDER = Path(__file__).parents[1] / "docs" / "performance"
RESULTS = FOLDER / "results.json"


class Store:
    """`scenarios[name]` has `date`, `commit`, `rounds` and, by variant, `results`."""

    def __init__(self, machine: dict[str, str]) -> None:
        """What another machine has measured is forgotten: a table is of one machine."""
        kept = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
        same = kept.get("machine", {}).get("CPU") == machine["CPU"]
        self.machine = machine
        self.scenarios: dict[str, Any] = kept["scenarios"] if same else {}

    def put(self, name: str, results: dict[str, Result], rounds: int) -> None:
        self.scenarios[name] = {
            "date": time.strftime("%Y-%m-%d"),
            "commit": _commit(),
            "rounds": rounds,
            "results": {variant: _rounded(asdict(result)) for variant, result in results.items()},
        }

    def figures(self, name: str) -> dict[str, Figures]:
        """By variant."""
        return {variant: result["figures"] for variant, result in self.scenarios[name]["results"].items()}

    def series(self, name: str, variant: str, series: str) -> list[float]:
        """Empty when it was not measured."""
        results = self.scenarios.get(name, {}).get("results", {})
        found: list[float] = results.get(variant, {}).get("series", {}).get(series, [])
        return found

    def save(self) -> None:
        FOLDER.mkdir(parents=True, exist_ok=True)
        RESULTS.write_text(json.dumps({"machine": self.machine, "scenarios": self.scenarios}, indent=1) + "\n")


def _rounded(value: Any) -> Any:
    """Floats to five significant digits, so that the file can be read."""
    if isinstance(value, float):
        return float(f"{value:.5g}")
    if isinstance(value, dict):
        return {name: _rounded(item) for name, item in value.items()}
    return [_rounded(item) for item in value] if isinstance(value, list) else value


def _commit() -> str:
    git = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=FOLDER.parents[1])
    return git.stdout.strip()
