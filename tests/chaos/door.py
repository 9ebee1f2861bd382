"""The pods as a client with retries sees them: another one at random each time, until one answers."""

import asyncio
import random
from typing import Any

import httpx

from tests.chaos.ledger import Ledger

TRY_AGAIN = {429, 503}
AGAIN_CODES = {"redis_unavailable", "shutting_down", "no_worker", "queue_full"}
TRANSPORT_ERRORS = (httpx.TransportError, OSError)
SILENCE_SECONDS = 10.0
"""A connection that says nothing for so long is given up; keepalives come far more often."""


async def pause(rng: random.Random) -> None:
    """Between two tries."""
    await asyncio.sleep(rng.uniform(0.02, 0.4))


class Door:
    def __init__(self, urls: list[str], ledger: Ledger) -> None:
        timeout = httpx.Timeout(SILENCE_SECONDS, connect=3)
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=20)
        self.urls = urls
        self.all = [httpx.AsyncClient(base_url=url, timeout=timeout, limits=limits) for url in urls]
        self._ledger = ledger

    async def close(self) -> None:
        for pod in self.all:
            await pod.aclose()

    def pod(self, rng: random.Random) -> httpx.AsyncClient:
        return rng.choice(self.all)

    async def call(self, rng: random.Random, method: str, path: str, **options: Any) -> httpx.Response:
        """The first answer that is not "try again"."""
        while True:
            try:
                response = await self.pod(rng).request(method, path, **options)
                if not self.refused(response):
                    return response
            except TRANSPORT_ERRORS:
                self._ledger.counts["requests that broke"] += 1
            await pause(rng)

    def refused(self, response: httpx.Response) -> bool:
        """Whether a later try may do better. The body must have been read."""
        if response.status_code == 500:
            self._ledger.find("lost", f"{response.request.method} {response.request.url}: 500 {response.text}")
        return response.status_code in TRY_AGAIN or response.status_code == 500
