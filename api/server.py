"""Serving a pod with uvicorn, and its orderly end.

uvicorn alone waits for open event streams for ever, and runs the application's shutdown only after them, too late
to end them (datasette#2890). So the signal is taken here: not ready, refuse new work, let open streams run for
`drain_seconds`, send the rest away with a `retry:`, and only then let uvicorn stop.
"""

import asyncio
import logging
import os
import resource
import signal
import socket
from contextlib import suppress
from types import FrameType

import uvicorn

from api.app import create_app
from api.garbage import collect_rarely
from api.pod import Pod
from common.settings import Settings

log = logging.getLogger(__name__)

LOOPBACK = ("127.", "localhost", "::1")
CLOSE_SECONDS = 5
"""How long streams get to close after they were sent away, and then connections from uvicorn."""


class PodServer(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, pod: Pod) -> None:
        super().__init__(config)
        self._pod = pod
        self._draining: asyncio.Task[None] | None = None

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """First signal: drain. Second: stop now."""
        if self._pod.draining:
            log.warning("pod %s: second signal, stops now", self._pod.id)
            # Nothing to clean up: all state is in Redis, and clients resume by their cursors.
            os._exit(128 + sig)
        self._pod.draining = True
        log.info("pod %s: %s, %d streams open", self._pod.id, signal.Signals(sig).name, self._pod.open_streams)
        # A signal handler runs between two bytecodes; the loop must be woken to notice the new task.
        loop = asyncio.get_running_loop()
        loop.call_soon_threadsafe(self._start_drain)

    def _start_drain(self) -> None:
        self._draining = asyncio.get_running_loop().create_task(self._drain(), name="drain")

    async def _drain(self) -> None:
        await self._streams_closed(self._pod.settings.drain_seconds)
        if self._pod.open_streams:
            log.info("pod %s: sends %d readers away", self._pod.id, self._pod.open_streams)
        self._pod.send_readers_away()
        # Not before the streams have said goodbye: once told to exit, uvicorn gives them a while and cuts them.
        await self._streams_closed(CLOSE_SECONDS)
        self.should_exit = True

    async def _streams_closed(self, seconds: float) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._pod.streams_closed.wait(), seconds)


def check_bind(settings: Settings, has_keys: bool) -> None:
    """Raises ValueError when the pod would serve anybody who can reach it."""
    if not has_keys and not settings.allow_anonymous and not settings.host.startswith(LOOPBACK):
        raise ValueError(
            f"refusing to serve {settings.host} without API keys; set TAILRACE_API_KEYS, or "
            "TAILRACE_ALLOW_ANONYMOUS=1 if everybody who can reach the port may use it"
        )


def serve(settings: Settings) -> None:
    """Serve until a signal. Raises ValueError or OSError for settings that cannot work."""
    app = create_app(settings)
    pod: Pod = app.state.pod
    check_bind(settings, bool(pod.keyring))
    config = uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        loop="uvloop",
        http="httptools",
        ws="websockets-sansio",
        ws_max_size=settings.max_body_bytes,
        ws_ping_interval=settings.keepalive_seconds,
        ws_ping_timeout=settings.send_timeout_seconds,
        access_log=False,
        log_level=settings.log_level,
        log_config=None,
        timeout_graceful_shutdown=CLOSE_SECONDS,
        server_header=False,
    )
    socket_ = config.bind_socket()
    # A reader that has stopped reading leaves megabytes in the kernel's buffer; closing alone would wait for them.
    socket_.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(settings.send_timeout_seconds * 1000))
    _allow_open_files()
    collect_rarely()
    PodServer(config, pod).run(sockets=[socket_])


def _allow_open_files() -> None:
    """As many as the system lets the process have: each reader is one, and the usual limit of 1024 is a shell's."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
