"""`python -m bench`: three loads through one pod, one worker and one Redis; a table; non-zero if a token was wrong."""

import asyncio
import os
import statistics
import sys
import tempfile
from pathlib import Path

import psutil
from rich.console import Console
from rich.table import Table

from bench.load import Load, run_load
from tests.support.processes import RedisServer, Stack

# streams, tokens each, milliseconds between tokens
LOADS = [(1, 100, 20), (30, 100, 50), (300, 100, 20)]


def cpu_seconds(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


def measure(folder: Path, streams: int, tokens: int, itl_ms: int) -> tuple[Load, dict[str, float]]:
    """One load on a fresh system; CPU in microseconds per token, by process."""
    redis = RedisServer(folder / "redis")
    stack = Stack(redis.url, folder / "stack", "bench", sim_itl_ms=itl_ms, sim_slots=streams, sim_stamp=1)
    try:
        api, worker = stack.api(), stack.worker()
        assert redis.process
        pids = {"api": api.pid, "redis": redis.process.pid, "worker and engine": worker.pid}
        asyncio.run(run_load(api.url, "simulated", streams, 5))  # warm
        before = {name: cpu_seconds(pid) for name, pid in pids.items()}
        load = asyncio.run(run_load(api.url, "simulated", streams, tokens))
        cpu = {name: (cpu_seconds(pid) - before[name]) / load.tokens * 1e6 for name, pid in pids.items()}
        return load, cpu
    finally:
        stack.stop()
        redis.stop()


def main() -> int:
    table = Table(title=f"{os.cpu_count()} cores; the client shares them")
    for column in (
        "streams",
        "offered/s",
        "tokens/s",
        "added p50 ms",
        "p99 ms",
        "CPU µs/token: api",
        "redis",
        "worker",
    ):
        table.add_column(column, justify="right")
    wrong = 0
    for streams, tokens, itl_ms in LOADS:
        with tempfile.TemporaryDirectory() as folder:
            load, cpu = measure(Path(folder), streams, tokens, itl_ms)
        wrong += load.wrong
        cuts = statistics.quantiles(load.added, n=100)
        figures = [
            f"{streams * 1000 / itl_ms:,.0f}",
            f"{load.tokens / load.seconds:,.0f}",
            f"{cuts[49] * 1000:.1f}",
            f"{cuts[98] * 1000:.1f}",
            *(f"{value:.0f}" for value in cpu.values()),
        ]
        table.add_row(str(streams), *figures)
    Console().print(table)
    print(f"bench: wrong={wrong}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
