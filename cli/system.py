"""Everything that `tailrace up` runs, from the first process to the last."""

import asyncio
import json
import shlex
import signal

from cli import redis_server
from cli.children import api_child, has_gpu, small_model, small_model_child, worker_child
from cli.datadir import DataDir
from cli.logfiles import last_line, rotate
from cli.progress import Progress
from cli.ready import until_pods_serve, until_workers_beat
from cli.supervisor import Supervisor
from common.fleet import WorkerInfo
from common.settings import Settings

_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""Addresses that mean all of this machine's, and the one to reach them by."""


class System:
    """Redis (unless it is somebody else's), `workers` workers and `apis` API processes, kept running until a signal."""

    def __init__(self, settings: Settings, data: DataDir, apis: int, workers: int, *, own_redis: bool) -> None:
        self._data = data
        self._own_redis = redis_server.Address.choose(data.redis) if own_redis else None
        url = self._own_redis.url if self._own_redis else settings.redis_url
        self._settings = settings.model_copy(update={"redis_url": url})
        self._apis = apis
        self._workers = workers
        self._progress = Progress()
        self._supervisor = Supervisor(self._progress.tell)
        self._asked_to_stop = False

    async def run(self) -> None:
        """Start, stay, stop. Raises Failure when the start fails, after everything was stopped."""
        self._handle_signals()
        try:
            worker = await self._start()
            self._tell_ready(worker)
            await self._supervisor.keep_running()
        except asyncio.CancelledError:
            self._progress.tell("stopping; Ctrl-C again ends open streams and running jobs at once")
        finally:
            await self._supervisor.stop()
            if self._own_redis and self._own_redis.socket:
                self._own_redis.socket.unlink(missing_ok=True)  # a redis-server that was killed leaves it

    def _handle_signals(self) -> None:
        loop = asyncio.get_running_loop()
        main = asyncio.current_task()
        assert main is not None

        def stop() -> None:
            # Only once, and not while a failed start is being cleaned up: that must run to its end.
            if self._asked_to_stop or self._supervisor.stopping:
                self._supervisor.kill()
            else:
                self._asked_to_stop = True
                main.cancel()

        for signum in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(signum, stop)
        if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # nohup
            loop.add_signal_handler(signal.SIGHUP, stop)

    async def _start(self) -> WorkerInfo:
        self._progress.tell(f"logs are in {self._data.path / 'logs'}")
        if self._own_redis:
            await self._start_redis(self._own_redis)
        if self._settings.engine == "vllm" and not self._settings.model:
            await self._prepare_small_model()
        return await self._start_ours()

    async def _start_redis(self, address: redis_server.Address) -> None:
        child = redis_server.redis_child(redis_server.find_binary(), address, self._data)
        rotate(child.log)
        async with self._progress.step(f"Redis, data in {self._data.redis}", lambda: last_line(child.log)):
            await self._supervisor.start(child)
            await self._supervisor.until(redis_server.until_answering(address.url))

    async def _prepare_small_model(self) -> None:
        if has_gpu():
            self._progress.tell("no --model given: serving a small one; a GPU like yours can serve a real one")
        target = small_model(self._data)
        if not target.is_dir():
            child = small_model_child(self._data)
            rotate(child.log)
            async with self._progress.step(f"preparing {target}", lambda: last_line(child.log)):
                await self._supervisor.run(child)
        self._settings = self._settings.model_copy(update={"model": str(target)})

    async def _start_ours(self) -> WorkerInfo:
        """Workers and API processes start together; the workers' engines take the time."""
        settings, data = self._settings, self._data
        workers = [worker_child(number, settings, data) for number in range(self._workers)]
        apis = [api_child(number, settings.port + number, settings, data) for number in range(self._apis)]
        for child in (*workers, *apis):
            rotate(child.log)
        # Pods last, so that they are stopped first, while workers still feed the streams they finish.
        await self._supervisor.start(*workers)
        await self._supervisor.start(*apis)
        async with self._progress.step(f"API on {', '.join(self._urls)}"):
            await self._supervisor.until(until_pods_serve(self._urls))
        async with self._progress.step(f"{settings.engine} engine", lambda: last_line(workers[0].log)):
            pids = [child.pid for child in workers]
            worker = await self._supervisor.until(until_workers_beat(pids, settings))
            await self._supervisor.until(until_pods_serve(self._urls, worker.model))
        return worker

    @property
    def _urls(self) -> list[str]:
        host = _EVERYWHERE.get(self._settings.host, self._settings.host)
        host = f"[{host}]" if ":" in host else host
        return [f"http://{host}:{self._settings.port + number}" for number in range(self._apis)]

    def _tell_ready(self, worker: WorkerInfo) -> None:
        url = self._urls[0]
        needs_key = bool(self._settings.api_keys or self._settings.api_keys_file)
        print(f"ready {url} model={worker.model} engine={worker.engine}")
        print(_curl(url, worker.model, needs_key), flush=True)


def _curl(url: str, model: str, needs_key: bool) -> str:
    """A command to try."""
    question = [{"role": "user", "content": "Why is the sky blue?"}]
    # Small models ramble at the usual temperature of 1.
    body = {"model": model, "stream": True, "temperature": 0, "messages": question}
    key = ' -H "Authorization: Bearer $TAILRACE_API_KEY"' if needs_key else ""
    headers = f"-H 'Content-Type: application/json'{key}"
    return f"curl -N {url}/v1/chat/completions {headers} -d {shlex.quote(json.dumps(body))}"
