"""One API pod: its connections, its background tasks, and whether it still takes work."""

import asyncio
import logging
import os
import secrets
import socket

from api.auth import KeyRing
from api.follow import Follower
from api.hub import Hub
from api.keepalive import Keepalive
from api.metrics import Metrics
from api.models import Models
from api.presence import Presence
from api.sends import Sends
from api.webhooks import Webhooks
from common.batches import BatchStore
from common.connections import command_client
from common.ending import Ender
from common.errors import Unavailable
from common.eventlog import EventLog
from common.fleet import Fleet
from common.janitor import Janitor
from common.jobs import JobStore
from common.settings import Settings
from common.tasks import cancel_all, spawn

log = logging.getLogger(__name__)


class Pod:
    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.id = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(2)}"
        self.keyring = KeyRing.load(settings)
        self.control = command_client(settings.redis_url)
        self.stream = command_client(settings.stream_url)
        self.jobs = JobStore(self.control, settings)
        self.batches = BatchStore(self.control, settings)
        keys = self.jobs.keys
        self.eventlog = EventLog(self.stream, keys)
        self.fleet = Fleet(self.control, keys)
        self.models = Models(self.fleet)
        self.ender = Ender(self.jobs, self.eventlog, settings, self.id)
        self.hub = Hub(settings.stream_url, self.stream, self.eventlog, self.jobs, keys)
        self.presence = Presence(self.stream, self.jobs, self.ender, keys, settings.presence_ttl_seconds)
        self.follower = Follower(self.hub, self.eventlog, self.jobs)
        self.sends = Sends(settings.send_timeout_seconds)
        self.keepalive = Keepalive(settings.keepalive_seconds)
        self.metrics = Metrics(self.hub)
        self.webhooks = Webhooks(settings, self.control, keys, self.metrics)
        self.draining = False
        self.closing = False
        """True once open streams must end; their readers go on at another pod."""
        self.open_streams = 0
        self.streams_closed = asyncio.Event()
        self.streams_closed.set()
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        works = {
            "hub": self.hub.run(),
            "presence": self.presence.run(),
            "sends": self.sends.run(),
            "keepalive": self.keepalive.run(),
            "models": self.models.run(),
            "janitor": Janitor(self.jobs, self.fleet, self.ender).run(),
        }
        if self.webhooks.on:
            works["webhooks"] = self.webhooks.run()
        self._tasks = [spawn(name, work) for name, work in works.items()]
        log.info("pod %s: started", self.id)

    async def stop(self) -> None:
        await self.presence.settle(timeout=2.0)
        await cancel_all(self._tasks)
        await self.webhooks.stop()
        await self.hub.stop()
        await self.control.aclose()
        await self.stream.aclose()
        log.info("pod %s: stopped", self.id)

    def send_readers_away(self) -> None:
        self.closing = True
        self.hub.send_away()

    def stream_opened(self) -> None:
        self.open_streams += 1
        self.metrics.open_streams.inc()
        self.streams_closed.clear()

    def stream_closed(self) -> None:
        self.open_streams -= 1
        self.metrics.open_streams.dec()
        if self.open_streams == 0:
            self.streams_closed.set()

    def accept_work(self) -> None:
        """Raises Unavailable once the pod is shutting down."""
        if self.draining:
            raise Unavailable("This pod is shutting down.", code="shutting_down", retry_after=1)
