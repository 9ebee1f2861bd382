"""Measure Tailrace beside what its engine does without it. See docs/performance.md.

python -m bench                               every scenario, a table each
python -m bench --only load_300,cancel        some
python -m bench --quick                       smaller and shorter, without vLLM
python -m bench --only load_300 --profile api py-spy of the pod, to bench/out
"""

import argparse
import os
import signal
import sys
import time

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from bench import machine, report
from bench.scenario import Figures, Options, Result
from bench.scenarios.catalog import SCENARIOS
from bench.store import Store
from bench.systems import tailrace
from bench.targets import verdicts
from bench.verdict import Verdict, number

BY_NAME = {scenario.name: scenario for scenario in SCENARIOS}
BASELINES = {"direct", "proxy", "per_client", "vllm"}
console = Console(width=110 if not sys.stdout.isatty() else None)


def main() -> int:
    args = _arguments()
    _clean_environment()
    # So that whoever ends this early leaves no processes behind.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    _yield_to_what_is_measured()
    options = Options(args.quick, args.apis, args.profile)
    store = _store() if args.write else None
    judged: list[Verdict] = []
    wrong = failures = 0
    for name in args.only.split(",") if args.only else BY_NAME:
        scenario = BY_NAME[name]
        if args.quick and scenario.needs_vllm:
            continue
        results = scenario.run(options, _say)
        measured = {variant: result.figures for variant, result in results.items()}
        here = verdicts(name, measured)
        _show(f"{name}: {scenario.title}", measured, results, here)
        judged += here
        wrong += sum(result.wrong for result in results.values())
        failures += sum(len(result.failures) for variant, result in results.items() if variant not in BASELINES)
        if store:
            store.put(name, results, scenario.rounds)
            store.save()
    if store:
        print(f"bench: wrote {report.write(store)}")
    return _summary(judged, wrong, failures)


def _say(text: str) -> None:
    print(f"bench: {time.strftime('%H:%M:%S')} {text}", flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", default="", help=f"comma separated, of: {', '.join(BY_NAME)}")
    parser.add_argument("--quick", action="store_true", help="smaller and shorter, one round, without vLLM")
    parser.add_argument("--apis", type=int, default=1, help="API processes, in load scenarios")
    parser.add_argument("--profile", default="", choices=["", "api", "worker", "redis"], help="py-spy it under load")
    parser.add_argument("--write", action="store_true", help="keep the results and write docs/performance.md")
    args = parser.parse_args()
    if unknown := set(filter(None, args.only.split(","))) - BY_NAME.keys():
        parser.error(f"no such scenario: {', '.join(sorted(unknown))}")
    if args.write and args.quick:
        parser.error("a quick run is not for the record: --quick without --write")
    return args


def _yield_to_what_is_measured() -> None:
    """The client does not interrupt a server that has just written to it; in production it runs elsewhere."""
    if hasattr(os, "SCHED_BATCH"):
        os.sched_setscheduler(0, os.SCHED_BATCH | os.SCHED_RESET_ON_FORK, os.sched_param(0))


def _clean_environment() -> None:
    """A developer's own settings must not change what is measured."""
    for name in [name for name in os.environ if name.startswith("TAILRACE_")]:
        del os.environ[name]


def _store() -> Store:
    with tailrace() as system:
        assert system.stack
        return Store(machine.describe(system.stack.redis_url))


def _show(title: str, measured: dict[str, Figures], results: dict[str, Result], judged: list[Verdict]) -> None:
    console.print(f"\n{title}")
    table = Table("", *measured)
    for name in dict.fromkeys(name for figures in measured.values() for name in figures):
        cells = (number(figures[name]) if name in figures else "" for figures in measured.values())
        table.add_row(report.label(name), *cells)
    console.print(table)
    for variant, result in results.items():
        if result.wrong or result.failures:
            console.print(f"{variant}: {result.wrong} wrong tokens; {escape(str(result.failures[:3]))}")
    for verdict in judged:
        colour = "green" if verdict.met else "red"
        value = f"{number(verdict.value)} {verdict.target.unit}".rstrip()
        console.print(f"  [{colour}]{verdict.margin}[/]  {verdict.target.text}: {value}, target {verdict.limit}")


def _summary(judged: list[Verdict], wrong: int, failures: int) -> int:
    """The last line. A missed target is a figure; a wrong token or a broken stream is a failure."""
    missed = [verdict.target.name for verdict in judged if not verdict.met]
    if wrong or failures:
        print(f"bench: {wrong} tokens were lost, doubled, reordered or false; {failures} streams broke")
    print(f"bench: met={len(judged) - len(missed)} missed={len(missed)} {' '.join(missed)}".rstrip())
    return 1 if wrong or failures else 0


if __name__ == "__main__":
    sys.exit(main())
