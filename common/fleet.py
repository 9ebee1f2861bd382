"""Which workers live and which models they serve, from their heartbeats."""

import time
from dataclasses import asdict, dataclass

import msgpack

from common.connections import Client
from common.keys import Keys
from common.records import known_fields

HEARTBEAT_SECONDS = 1.0
HEARTBEAT_TTL_SECONDS = 5.0
MODEL_MEMORY_SECONDS = 86_400
"""How long a model without a worker is still a known one (503, not 404; jobs for it may wait)."""


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """One heartbeat. `running` counts the worker's jobs, `engine_running` the requests inside its engine."""

    id: str
    model: str
    engine: str
    capacity: int
    running: int
    engine_running: int
    max_model_len: int | None
    max_prompt_chars: int | None
    started_at: float
    version: str
    draining: bool = False


class Fleet:
    def __init__(self, client: Client, keys: Keys) -> None:
        self._client = client
        self._keys = keys

    async def beat(self, worker: WorkerInfo) -> None:
        async with self._client.pipeline(transaction=False) as pipe:
            pipe.set(self._keys.worker(worker.id), msgpack.packb(asdict(worker)), px=int(HEARTBEAT_TTL_SECONDS * 1000))
            pipe.sadd(self._keys.workers, worker.id)
            pipe.zadd(self._keys.models, {worker.model: time.time()})
            pipe.expire(self._keys.models, MODEL_MEMORY_SECONDS)
            pipe.expire(self._keys.workers, MODEL_MEMORY_SECONDS)
            await pipe.execute()

    async def leave(self, worker_id: str) -> None:
        async with self._client.pipeline(transaction=False) as pipe:
            pipe.delete(self._keys.worker(worker_id))
            pipe.srem(self._keys.workers, worker_id)
            await pipe.execute()

    async def workers(self) -> list[WorkerInfo]:
        """All live workers. Forgets those whose heartbeat has lapsed."""
        ids = sorted(id.decode() for id in await self._client.smembers(self._keys.workers))  # type: ignore[misc]
        if not ids:
            return []
        raw = await self._client.mget([self._keys.worker(id) for id in ids])
        gone = [id for id, packed in zip(ids, raw, strict=True) if packed is None]
        if gone:
            await self._client.srem(self._keys.workers, *gone)  # type: ignore[misc]
        return [known_fields(WorkerInfo, msgpack.unpackb(packed)) for packed in raw if packed is not None]

    async def known_models(self) -> list[str]:
        """Models that had a worker within the last day, with or without one now."""
        since = time.time() - MODEL_MEMORY_SECONDS
        return [name.decode() for name in await self._client.zrangebyscore(self._keys.models, since, "+inf")]
