"""A worker's Prometheus metrics. With vLLM in process, vLLM's own metrics are on the same page."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from prometheus_client import Gauge

if TYPE_CHECKING:
    from workers.main import WorkerProcess


def register_worker(worker: "WorkerProcess") -> None:
    """Gauges that read the live objects when scraped: nothing is counted twice and no hot path pays."""
    _gauge("running_jobs", "Jobs this worker runs", lambda: len(worker.runner.running))
    _gauge("engine_running", "Requests inside the engine", worker.engine.running)
    _gauge("slots", "Jobs this worker can run at once", lambda: worker.engine.capacity)
    _gauge("writer_outages", "Flushes that failed because Redis was away", lambda: worker.writer.outages)
    _gauge("watch_failures", "Rounds in which the cancel keys could not be read", lambda: worker.watch.failures)
    _gauge("watch_last_poll", "Unix time of the last read of the cancel keys", lambda: worker.watch.last_poll)


def _gauge(name: str, text: str, read: Callable[[], float]) -> None:
    Gauge(f"tailrace_worker_{name}", text).set_function(read)
