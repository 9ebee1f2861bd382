"""The pod's Prometheus metrics."""

import asyncio

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from api.hub import Hub
from common.fleet import WorkerInfo


class Metrics:
    """A registry of its own: several pods may live in one process in tests."""

    def __init__(self, hub: Hub) -> None:
        self.registry = CollectorRegistry()
        self.submitted = Counter("tailrace_jobs_submitted", "Jobs accepted", ["surface"], registry=self.registry)
        self.errors = Counter("tailrace_http_errors", "Errors answered", ["code"], registry=self.registry)
        self.ttft = Histogram(
            "tailrace_time_to_first_token_seconds",
            "From submit to the first token's event in this pod",
            registry=self.registry,
            buckets=(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300),
        )
        self.events_sent = 0
        """Since `render`. A plain number, because a Counter's lock costs a microsecond, and this counts every token."""
        self._events_sent = Counter("tailrace_events_sent", "Log events sent to readers", registry=self.registry)
        self.open_streams = Gauge("tailrace_open_streams", "Readers being streamed to", registry=self.registry)
        self.webhooks = Counter(
            "tailrace_webhook_tries", "Tries to deliver a webhook", ["outcome"], registry=self.registry
        )
        self.webhooks_waiting = Gauge(
            "tailrace_webhooks_waiting", "Webhooks not delivered yet, of the whole deployment", registry=self.registry
        )
        topics = Gauge("tailrace_hub_streams", "Streams read from Redis", registry=self.registry)
        topics.set_function(lambda: hub.streams)
        tasks = Gauge("tailrace_tasks", "asyncio tasks of the pod", registry=self.registry)
        tasks.set_function(lambda: len(asyncio.all_tasks()))
        self._queue = Gauge("tailrace_queue_depth", "Jobs that wait", ["model"], registry=self.registry)
        self._running = Gauge("tailrace_running_jobs", "Jobs under a lease", ["model"], registry=self.registry)
        self._workers = Gauge("tailrace_workers", "Live workers", ["model"], registry=self.registry)
        self._slots = Gauge(
            "tailrace_slots", "Jobs the live workers can run at once", ["model"], registry=self.registry
        )

    def render(self, depths: dict[str, tuple[int, int]], workers: list[WorkerInfo]) -> bytes:
        """Prometheus text. `depths`: waiting and running jobs per known model."""
        self._events_sent.inc(self.events_sent)
        self.events_sent = 0
        for model, (waiting, running) in depths.items():
            mine = [worker for worker in workers if worker.model == model]
            self._queue.labels(model).set(waiting)
            self._running.labels(model).set(running)
            self._workers.labels(model).set(len(mine))
            self._slots.labels(model).set(sum(worker.capacity for worker in mine))
        return generate_latest(self.registry)
