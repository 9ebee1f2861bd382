"""A worker's Prometheus metrics. With vLLM in process, vLLM's own metrics are on the same page."""

from collections.abc import Callable

from prometheus_client import Gauge

from workers.engines.base import Engine
from workers.runner import Runner
from workers.watch import Watch
from workers.writer import StreamWriter


def register(engine: Engine, runner: Runner, writer: StreamWriter, watch: Watch) -> None:
    """Gauges that read the live objects when scraped: nothing is counted twice and no hot path pays."""
    _gauge("running_jobs", "Jobs this worker runs", lambda: len(runner.running))
    _gauge("engine_running", "Requests inside the engine", engine.running)
    _gauge("slots", "Jobs this worker can run at once", lambda: engine.capacity)
    _gauge("writer_outages", "Flushes that failed because Redis was away", lambda: writer.outages)
    _gauge("watch_failures", "Rounds in which the cancel keys could not be read", lambda: watch.failures)
    _gauge("watch_last_poll", "Unix time of the last read of the cancel keys", lambda: watch.last_poll)


def _gauge(name: str, text: str, read: Callable[[], float]) -> None:
    Gauge(f"tailrace_worker_{name}", text).set_function(read)
