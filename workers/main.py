"""One worker process: an engine and everything around it. Configured by settings alone."""

import asyncio
import importlib.metadata
import logging
import math
import os
import secrets
import signal
import socket
import time
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

import msgpack
import uvloop
from arq.connections import ArqRedis
from arq.worker import func
from prometheus_client import start_http_server
from redis.exceptions import RedisError

from common.connections import blocking_client, command_client
from common.ending import Ender
from common.eventlog import EventLog
from common.fleet import HEARTBEAT_SECONDS, Fleet, WorkerInfo
from common.janitor import Janitor
from common.jobs import ARQ_FUNCTION, JobStore
from common.settings import Settings
from common.tasks import cancel_all
from workers import metrics
from workers.engines.base import Engine, EngineDied
from workers.pipe import Pipe
from workers.queue import WAKE_SECONDS, QueueWorker
from workers.runner import Runner
from workers.watch import Watch
from workers.writer import StreamWriter

log = logging.getLogger(__name__)

VERSION = importlib.metadata.version("tailrace")
NO_TIMEOUT_SECONDS = 10 * 365 * 86_400
"""For arq, which wants a number. The real limits are the job's own (workers/watch.py)."""


class WorkerProcess:
    """Wires the parts together; `run` blocks until a signal or the engine's death ends it."""

    def __init__(self, settings: Settings, engine: Engine) -> None:
        self.settings = settings
        self.id = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(2)}"
        self.engine = engine
        self.started_at = time.time()
        self.exit_code = 0
        control = command_client(settings.redis_url)
        stream = command_client(settings.stream_url)
        self.jobs = JobStore(control, settings)
        keys = self.jobs.keys
        self.eventlog = EventLog(stream, keys)
        self.fleet = Fleet(control, keys)
        self.writer = StreamWriter(Pipe(stream), keys, settings)
        self.watch = Watch(control, stream, keys, settings)
        self.ender = Ender(self.jobs, self.eventlog, settings, self.id)
        self.runner = Runner(self.engine, self.jobs, self.eventlog, self.writer, self.watch, self.ender, settings)
        self._control = control
        self._side_tasks: list[asyncio.Task[None]] = []
        self.queue: QueueWorker | None = None

    def run(self) -> int:
        """Serve until stopped. Returns the process's exit code: not 0 when the engine died."""
        loop = uvloop.new_event_loop()
        asyncio.set_event_loop(loop)
        try:
            # The engine starts before arq's worker exists, because its capacity is the worker's concurrency.
            starting = loop.create_task(self.engine.start())
            for signum in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(signum, starting.cancel)
            loop.run_until_complete(starting)
            self.queue = self._make_queue()
            self.queue.run()
        except asyncio.CancelledError:
            loop.run_until_complete(self.engine.stop())
        except EngineDied as error:
            log.error("worker %s: the engine did not start: %s", self.id, error)
            self.exit_code = 1
        return self.exit_code

    def _make_queue(self) -> QueueWorker:
        model = self.engine.model
        return QueueWorker(
            [func(_generate, name=ARQ_FUNCTION)],
            queue_name=self.jobs.keys.queue(model),
            redis_pool=ArqRedis(self._control.connection_pool),
            on_startup=self._on_startup,
            on_shutdown=self._on_shutdown,
            max_jobs=self.engine.capacity,
            job_timeout=NO_TIMEOUT_SECONDS,
            keep_result=0,
            job_completion_wait=max(1, math.ceil(self.settings.drain_seconds)),
            health_check_interval=30,
            job_serializer=msgpack.packb,
            job_deserializer=msgpack.unpackb,
            ctx={"runner": self.runner},
            store=self.jobs,
            wake_client=blocking_client(self.settings.redis_url, WAKE_SECONDS),
            model=model,
            worker_id=self.id,
            lease_seconds=self.settings.lease_seconds,
            running=self.runner.running,
            engine_serves=self._engine_serves,
        )

    async def _on_startup(self, _: dict[Any, Any]) -> None:
        metrics.register(self.engine, self.runner, self.writer, self.watch)
        if self.settings.worker_metrics_port:
            start_http_server(self.settings.worker_metrics_port, addr=self.settings.worker_metrics_host)
        self._spawn("writer", self.writer.run())
        self._spawn("watch", self.watch.run())
        self._spawn("janitor", Janitor(self.jobs, self.fleet, self.ender).run())
        await self._beat()  # before the log says ready, so that whoever reads it finds the worker
        self._spawn("heartbeat", self._beat_forever())
        self._spawn("engine guard", self._guard_engine())
        log.info("worker %s: ready, model %s on %s, %d slots", self.id, self.engine.model, self.engine.name,
                 self.engine.capacity)  # fmt: skip

    async def _on_shutdown(self, _: dict[Any, Any]) -> None:
        await cancel_all(self._side_tasks)
        with suppress(RedisError, OSError):
            await self.fleet.leave(self.id)
        await self.engine.stop()
        log.info("worker %s: stopped", self.id)

    def _spawn(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work, name=name)
        # A side task never ends by itself; if one does, the worker must not go on half alive.
        task.add_done_callback(lambda done: None if done.cancelled() else self._fail(f"{name}: {done.exception()}"))
        self._side_tasks.append(task)

    def _fail(self, why: str) -> None:
        log.critical("worker %s: stops, %s", self.id, why)
        self.exit_code = 1
        if self.queue:
            self.queue.handle_sig(signal.SIGTERM)

    async def _beat_forever(self) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_SECONDS)
            await self._beat()

    async def _beat(self) -> None:
        with suppress(RedisError, OSError):
            await self.fleet.beat(self.info())

    async def _guard_engine(self) -> None:
        """Leave when the engine is dead: the supervisor starts a worker with a fresh one."""
        while self._engine_serves():
            with suppress(TimeoutError):
                async with asyncio.timeout(HEARTBEAT_SECONDS):
                    await self.runner.engine_died.wait()
            if self._engine_hangs():
                log.error("worker %s: no request has made progress for %.0f s", self.id, self.runner.silent_seconds())
                self.runner.give_all_back()
        self._fail("its engine died")
        await asyncio.Event().wait()

    def _engine_serves(self) -> bool:
        return self.engine.healthy() and not self.runner.engine_died.is_set()

    def _engine_hangs(self) -> bool:
        """A hung EngineCore looks healthy to vLLM itself, so silence is the only sign."""
        limit = self.settings.engine_stall_seconds
        return self.engine.in_process and 0 < limit < self.runner.silent_seconds() and self.engine.running() > 0

    def info(self) -> WorkerInfo:
        engine = self.engine
        return WorkerInfo(
            id=self.id,
            model=engine.model,
            engine=engine.name,
            capacity=engine.capacity,
            running=len(self.runner.running),
            engine_running=engine.running(),
            max_model_len=engine.max_model_len,
            max_prompt_chars=engine.max_prompt_chars,
            started_at=self.started_at,
            version=VERSION,
            draining=self.queue is not None and not self.queue.allow_pick_jobs,
        )


async def _generate(ctx: dict[Any, Any], _job_id: str) -> None:
    """The arq function. The request is in the job record, which the claim has brought along."""
    await ctx["runner"].run(ctx["claim"])
