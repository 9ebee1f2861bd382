"""The commands and environments of what `tailrace up` starts besides Redis."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from cli.datadir import DataDir
from cli.processes import Child
from common.settings import Settings
from workers.engines.smallmodel import FOLDER_NAME

MARGIN_SECONDS = 15.0
"""What a child gets beyond `drain_seconds` before it is killed: vLLM needs up to ten to end its processes."""

# -P: a folder `api` or `common` in the current directory must not be taken for ours.
_PYTHON = (sys.executable, "-P", "-m")


def api_child(number: int, port: int, settings: Settings, data: DataDir) -> Child:
    name = f"api-{number}"
    env = environment(settings, port=port)
    patience = settings.drain_seconds + MARGIN_SECONDS
    return Child(name, [*_PYTHON, "cli.main", "api"], env, data.log(name), patience)


def worker_child(number: int, settings: Settings, data: DataDir) -> Child:
    name = f"worker-{number}"
    # Worker n serves its metrics n ports above the first one's.
    metrics = settings.worker_metrics_port and settings.worker_metrics_port + number
    env = environment(settings, worker_metrics_port=metrics)
    patience = settings.drain_seconds + MARGIN_SECONDS
    return Child(name, [*_PYTHON, "cli.main", "worker"], env, data.log(name), patience)


def small_model(data: DataDir) -> Path:
    """Where the small model is, or will be."""
    return data.models / FOLDER_NAME


def small_model_child(data: DataDir) -> Child:
    """Prepares the small model."""
    command = [*_PYTHON, "workers.engines.smallmodel", str(small_model(data))]
    # SIGINT, because it lets Python remove the half-made folder.
    return Child("model", command, environment(), data.log("model"), MARGIN_SECONDS, stop_signal=signal.SIGINT)


def environment(settings: Settings | None = None, **changes: object) -> Mapping[str, str]:
    """This process's environment, overridden by what the flags have set and by `changes`."""
    given = {name: getattr(settings, name) for name in _FLAGS} if settings else {}
    variables = {f"TAILRACE_{name.upper()}": str(value) for name, value in {**given, **changes}.items()}
    return {**os.environ, **variables, "PYTHONUNBUFFERED": "1"}


_FLAGS = ("engine", "model", "upstream_url", "host", "redis_url", "data_dir")


def has_gpu() -> bool:
    """Whether NVIDIA's tool lists one; cheaper than asking torch, which takes seconds to import."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return False
    try:
        listed = subprocess.run([tool, "-L"], capture_output=True, timeout=10, check=False)
    except subprocess.TimeoutExpired:
        return False
    return listed.stdout.startswith(b"GPU ")
