"""`tailrace status`: what runs, what waits, and who works, per model."""

from collections import defaultdict
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console
from rich.table import Table

from cli.client import DEFAULT_URL, ApiKey, Client, Url


@dataclass
class ModelStatus:
    """Live workers and their slots, jobs that run and jobs that wait."""

    engine: str = "-"
    workers: int = 0
    slots: int = 0
    running: int = 0
    queued: int = 0


_METRICS = {
    "tailrace_workers": "workers",
    "tailrace_slots": "slots",
    "tailrace_running_jobs": "running",
    "tailrace_queue_depth": "queued",
}


def status(url: Url = DEFAULT_URL, api_key: ApiKey = "") -> None:
    """Show the models with their workers, slots, running and waiting jobs."""
    client = Client(url, api_key)
    models = parse(client.get_text("/metrics"))
    for served in client.get("/v1/models")["data"]:
        models[served["id"]].engine = served["engine"]
    table = Table("model", "engine")
    for column in _METRICS.values():
        table.add_column(column, justify="right")
    for name, model in sorted(models.items()):
        table.add_row(name, model.engine, *(str(getattr(model, column)) for column in _METRICS.values()))
    Console().print(table if models else "no worker has served a model yet")


def parse(metrics: str) -> defaultdict[str, ModelStatus]:
    """By model, from a pod's Prometheus page."""
    models: defaultdict[str, ModelStatus] = defaultdict(ModelStatus)
    for family in text_string_to_metric_families(metrics):
        if column := _METRICS.get(family.name):
            for sample in family.samples:
                setattr(models[sample.labels["model"]], column, int(sample.value))
    return models
