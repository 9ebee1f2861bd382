"""`python -m bench`: see docs/performance.md."""

import argparse
import sys

from rich.console import Console
from rich.table import Table

from bench.scenarios.load import offered
from bench.systems import tailrace

LOADS = {"load_300": (300, 256, 20), "load_30": (30, 100, 50)}
"""Streams, tokens each, milliseconds between tokens."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench", description=__doc__)
    parser.add_argument("--only", help="scenarios, comma separated", default=",".join(LOADS))
    parser.add_argument("--apis", type=int, default=1, help="API processes")
    parser.add_argument("--profile", default="", choices=["", "api", "worker"], help="py-spy this process to bench/out")
    args = parser.parse_args()
    wrong = 0.0
    for name in args.only.split(","):
        streams, tokens, itl_ms = LOADS[name]
        with tailrace(apis=args.apis, sim_itl_ms=itl_ms, sim_slots=streams) as system:
            load, figures = offered(system, streams, tokens, profile=args.profile)
        table = Table("figure", name)
        for key, value in figures.items():
            table.add_row(key, f"{value:,.1f}")
        Console().print(table, *load.failures[:3])
        wrong += load.wrong
    print(f"bench: wrong={wrong:.0f}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
