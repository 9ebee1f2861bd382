"""When `tailrace up` is ready: its workers beat, and each of its pods offers their model."""

import asyncio
import socket
from collections.abc import Sequence
from contextlib import aclosing

import httpx
from redis.exceptions import RedisError

from common.connections import command_client
from common.fleet import Fleet, WorkerInfo
from common.keys import Keys
from common.settings import Settings

POLL_SECONDS = 0.1


async def until_workers_beat(pids: Sequence[int], settings: Settings) -> WorkerInfo:
    """Returns one of the workers with these pids, once all of them take jobs."""
    client = command_client(settings.redis_url)
    fleet = Fleet(client, Keys(settings.namespace))
    # Somebody else's Redis may know other workers; ours have this host and these pids in their ids.
    prefixes = [f"{socket.gethostname()}-{pid}-" for pid in pids]
    async with aclosing(client):
        while True:
            alive = await _workers(fleet)
            ours = [worker for worker in alive if worker.id.startswith(tuple(prefixes))]
            if len(ours) == len(prefixes):
                return ours[0]
            await asyncio.sleep(POLL_SECONDS)


async def until_pods_serve(urls: Sequence[str], model: str | None = None) -> None:
    """Returns once every pod is ready and, if given, lists `model`."""
    # No proxy of the environment: the pods are on this machine.
    async with httpx.AsyncClient(trust_env=False, timeout=5.0) as http:
        for url in urls:
            while True:
                if await _is_ready(http, url) and (model is None or await _offers(http, url, model)):
                    break
                await asyncio.sleep(POLL_SECONDS)


async def _workers(fleet: Fleet) -> list[WorkerInfo]:
    try:
        return await fleet.workers()
    except (RedisError, OSError):
        return []


async def _is_ready(http: httpx.AsyncClient, url: str) -> bool:
    try:
        return (await http.get(f"{url}/health/ready")).status_code == httpx.codes.OK
    except httpx.TransportError:
        return False


async def _offers(http: httpx.AsyncClient, url: str, model: str) -> bool:
    try:
        answer = await http.get(f"{url}/v1/models")
    except httpx.TransportError:
        return False
    if answer.status_code == httpx.codes.UNAUTHORIZED:
        return True  # `up` knows only the digests of the keys; a ready pod finds new workers when asked for them
    return answer.status_code == httpx.codes.OK and any(served["id"] == model for served in answer.json()["data"])
