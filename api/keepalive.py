"""Streams that say nothing for a while get a comment, so that no proxy takes them for dead (litellm#37322)."""

import asyncio
import time
from typing import Protocol


class Silent(Protocol):
    spoke_at: float
    """time.monotonic() of the last write."""

    def keep_alive(self) -> None:
        """Say something without a meaning. Returns at once."""


class Keepalive:
    """One task for all streams of the pod. `run` must be running."""

    def __init__(self, seconds: float) -> None:
        self.streams: set[Silent] = set()
        self._seconds = seconds

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self._seconds / 10)
            before = time.monotonic() - self._seconds
            for stream in [stream for stream in self.streams if stream.spoke_at < before]:
                stream.keep_alive()
