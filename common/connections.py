"""Redis clients. Commands and blocking reads never share a pool.

A blocking read holds its connection for seconds; in a shared pool a few of them starve every other command
(anchors: 5 of 5 pool connections blocked in XREAD, then PING fails).
"""

import asyncio
import builtins
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from urllib.parse import unquote

import hiredis
from redis._parsers import _AsyncHiredisParser
from redis.asyncio import BlockingConnectionPool, ConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel, SentinelConnectionPool
from redis.backoff import NoBackoff
from redis.exceptions import (
    BusyLoadingError,
    ClusterDownError,
    ConnectionError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
    TimeoutError,
)

from common.errors import Unavailable

Client = Redis
"""redis-py's asyncio client; always with bytes replies."""

SENTINEL_SCHEME = "redis+sentinel://"
COMMAND_TIMEOUT_SECONDS = 5.0
CONNECT_TIMEOUT_SECONDS = 2.0
COMMAND_CONNECTIONS = 64
POOL_WAIT_SECONDS = 5.0

# Redis is there but cannot serve now: loading its file, a replica after a failover (which also ends blocked reads), out
# of memory, disk full.
_NOT_NOW = (BusyLoadingError, ClusterDownError, OutOfMemoryError, ReadOnlyError)
_NOT_NOW_PREFIXES = ("MISCONF", "LOADING", "READONLY", "OOM", "MASTERDOWN", "TRYAGAIN", "NOREPLICAS", "UNBLOCKED")
_IN_SCRIPT = re.compile(rf"^ERR Error running script .*: -(?=({'|'.join(_NOT_NOW_PREFIXES)}) )")


class _OurParser(_AsyncHiredisParser):
    """Tells what a script's command was refused for as if it had not been in a script.

    Before Redis 7 it comes wrapped: "ERR Error running script (call to f_…): @user_script:1: @user_script: 1: -OOM
    command not allowed …". The script has written nothing then: only its first write can be refused.
    """

    @classmethod
    def parse_error(cls, response: str) -> ResponseError:
        error: ResponseError = super().parse_error(_IN_SCRIPT.sub("", response))  # type: ignore[no-untyped-call]
        return error


class _OurConnection:
    """Mixed into redis-py's connections, whose asyncio half is behind its other half in two things."""

    socket_timeout: float | None

    def pack_command(self, *args: Any) -> list[bytes]:
        """Packed in C, as redis-py's blocking connections do: its asyncio ones take 1 µs per argument in Python.

        The name is split because redis-py passes "SCRIPT LOAD" as one.
        """
        return [hiredis.pack_command((*args[0].split(), *args[1:]))]

    async def send_packed_command(self, command: Any, check_health: bool = True) -> None:
        """Sending must not swallow a cancellation.

        redis-py 5.3 sends through asyncio.wait_for, and before Python 3.12 that returns normally when the cancellation
        comes just as the send is done: the task goes on, and whoever waits for its end waits for ever. (asyncio.timeout
        does not, and it makes no task per send either.)
        """
        seconds, self.socket_timeout = self.socket_timeout, None
        try:
            async with asyncio.timeout(seconds):
                await super().send_packed_command(command, check_health)  # type: ignore[misc]
        except builtins.TimeoutError as error:
            raise TimeoutError("Timeout writing to socket") from error
        finally:
            self.socket_timeout = seconds


def _ours(pool: ConnectionPool) -> ConnectionPool:
    plain = pool.connection_class
    pool.connection_class = type(f"Our{plain.__name__}", (_OurConnection, plain), {})
    pool.connection_kwargs["parser_class"] = _OurParser
    return pool


def command_client(url: str) -> Client:
    """A client for short commands.

    One retry without delay: after a restart of Redis each pooled connection fails once before it reconnects. A master
    that has become a replica is left as well, for its name may lead to the new one; behind Sentinel redis-py does that.
    Every command and script of ours may be repeated safely (see the scripts' comments), except `claim`,
    whose lost claims come back when their lease ends.
    """
    options: dict[str, Any] = {
        "socket_timeout": COMMAND_TIMEOUT_SECONDS,
        "retry": Retry(NoBackoff(), 1),
        "retry_on_error": [ConnectionError, ReadOnlyError],
    }
    if url.startswith(SENTINEL_SCHEME):
        return Redis.from_pool(_sentinel_pool(url, **options))
    options |= {"max_connections": COMMAND_CONNECTIONS, "timeout": POOL_WAIT_SECONDS}
    pool = BlockingConnectionPool.from_url(url, socket_connect_timeout=CONNECT_TIMEOUT_SECONDS, **options)
    return Redis.from_pool(_ours(pool))


def blocking_client(url: str, block_seconds: float) -> Client:
    """A client with one connection of its own for reads that block up to `block_seconds`.

    The socket timeout is above the block, so that a dead peer is noticed and an idle stream is not an error
    (redis-py 8 defaults to 5 s and kills such reads: docket#425).
    """
    timeout = block_seconds + COMMAND_TIMEOUT_SECONDS
    if url.startswith(SENTINEL_SCHEME):
        pool = _sentinel_pool(url, socket_timeout=timeout)
    else:
        pool = _ours(
            ConnectionPool.from_url(
                url,
                socket_timeout=timeout,
                socket_connect_timeout=CONNECT_TIMEOUT_SECONDS,
                retry_on_error=[ReadOnlyError],
            )
        )
    client: Redis = Redis(connection_pool=pool, single_connection_client=True)
    client.auto_close_connection_pool = True
    return client


def _sentinel_pool(url: str, **options: Any) -> ConnectionPool:
    """Connections to whatever master the sentinels name at the moment each is made."""
    place = parse_sentinel_url(url)
    sentinel = Sentinel(  # type: ignore[no-untyped-call]
        place.sentinels, socket_timeout=CONNECT_TIMEOUT_SECONDS, socket_connect_timeout=CONNECT_TIMEOUT_SECONDS
    )
    options |= {"socket_connect_timeout": CONNECT_TIMEOUT_SECONDS, "db": place.db}
    if place.password:
        options |= {"username": place.username, "password": place.password}
    pool = SentinelConnectionPool(place.master, sentinel, **options)  # type: ignore[no-untyped-call]
    return _ours(pool)


class SentinelPlace(NamedTuple):
    sentinels: list[tuple[str, int]]
    master: str
    db: int
    username: str | None
    password: str | None


def parse_sentinel_url(url: str) -> SentinelPlace:
    """`redis+sentinel://[user:password@]host:port,host:port/master[/db]`; the credentials are the master's.

    Raises ValueError.
    """
    rest = url.removeprefix(SENTINEL_SCHEME)
    credentials, at, rest = rest.rpartition("@")
    username, _, password = credentials.partition(":") if at else ("", "", "")
    hosts, _, path = rest.partition("/")
    master, _, db = path.partition("/")
    if not master:
        raise ValueError("the name of the master is missing: redis+sentinel://host:port,.../NAME[/DB]")
    sentinels = []
    for place in hosts.split(","):
        host, _, port = place.rpartition(":")
        if not host:
            raise ValueError(f"not host:port: {place!r}")
        sentinels.append((host, int(port)))
    return SentinelPlace(sentinels, master, int(db or 0), unquote(username) or None, unquote(password) or None)


def is_outage(error: BaseException) -> bool:
    """Whether `error` says that Redis is away or cannot serve now, so that the same command may work later."""
    if isinstance(error, (ConnectionError, TimeoutError, OSError, *_NOT_NOW)):
        return True
    if not isinstance(error, ResponseError):
        return False
    return str(error).startswith(_NOT_NOW_PREFIXES)


@contextmanager
def translated() -> Iterator[None]:
    """Raise `Unavailable` (503) for what `is_outage`; other errors pass."""
    try:
        yield
    except (RedisError, OSError) as error:
        if is_outage(error):
            raise Unavailable("Redis cannot be reached, try again shortly.", retry_after=1) from error
        raise
