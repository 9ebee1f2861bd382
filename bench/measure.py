"""CPU and memory of process trees, and percentiles."""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import psutil


def cpu_seconds(pid: int) -> float:
    """User and system time of a process, of its living descendants, and of the children it has outlived.

    Of this process itself only its own: everything that is measured is its child.
    """
    if pid == os.getpid():
        return time.process_time()
    process = psutil.Process(pid)
    own = process.cpu_times()
    total = own.user + own.system + own.children_user + own.children_system
    for child in process.children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            times = child.cpu_times()
            total += times.user + times.system
    return float(total)


def rss_bytes(pid: int) -> int:
    return int(psutil.Process(pid).memory_info().rss)


def percentile(values: Iterable[float], share: float) -> float:
    """Nearest rank: a value that was really measured. NaN when there is none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else float("nan")


class CpuMeter:
    """CPU seconds of groups of processes since `start`."""

    def __init__(self, groups: dict[str, list[int]]) -> None:
        self._groups = groups
        self._before = self._now()

    def used(self) -> dict[str, float]:
        return {name: now - self._before[name] for name, now in self._now().items()}

    def _now(self) -> dict[str, float]:
        return {name: sum(map(cpu_seconds, pids)) for name, pids in self._groups.items()}


@contextlib.contextmanager
def profiled(pids: Sequence[int], out: Path) -> Iterator[None]:
    """py-spy of the first of `pids` while the block runs; `out` opens in speedscope.app. Without pids: nothing."""
    if not pids:
        yield
        return
    out.parent.mkdir(parents=True, exist_ok=True)
    command = ["py-spy", "record", "--pid", str(pids[0]), "--output", str(out), "--format", "speedscope", "--native"]
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        yield
    finally:
        child.send_signal(signal.SIGINT)
        child.wait(60)
