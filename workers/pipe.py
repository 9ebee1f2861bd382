"""Hundreds of commands in one round trip, for what the writer sends at every step of its engine.

redis-py's pipeline is made for a handful: it keeps a record of each command and waits for each reply under a timer of
its own. For 300 streams that was most of what a flush cost.
"""

import asyncio
from typing import Any

import hiredis
from redis.asyncio.connection import AbstractConnection
from redis.exceptions import ReadOnlyError, ResponseError

from common.connections import COMMAND_TIMEOUT_SECONDS, Client

Command = tuple[str | bytes | int, ...]


class Pipe:
    """A connection that is kept, so that a flush neither waits for one nor has it checked. For one task at a time."""

    def __init__(self, client: Client) -> None:
        self._pool = client.connection_pool
        self._connection: AbstractConnection | None = None

    async def exchange(self, commands: list[Command]) -> list[Any]:
        """Send `commands`; returns for each its reply, or the ResponseError with which Redis refused it.

        After a broken connection, or from a master that has become a replica, all are sent once more. Raises
        RedisError or OSError when Redis is away; any of the commands may have been executed then.
        """
        if self._connection is None:
            self._connection = await self._pool.get_connection()
            self._connection.socket_timeout = None  # one timeout for all replies, see below
        connection, packed = self._connection, _pack(commands)
        replies: list[Any] = await connection.retry.call_with_retry(
            lambda: _exchange(connection, packed, len(commands)), lambda _: connection.disconnect()
        )
        return replies


async def _exchange(connection: AbstractConnection, packed: bytes, count: int) -> list[Any]:
    # Leaving early, for whatever reason, closes the connection: no reply can be taken for that of a later command.
    async with asyncio.timeout(COMMAND_TIMEOUT_SECONDS):
        await connection.send_packed_command(packed)
        return [await _reply(connection) for _ in range(count)]


async def _reply(connection: AbstractConnection) -> Any:
    try:
        return await connection.read_response()
    except ReadOnlyError:
        raise  # to send all of it again, over a new connection: the name may lead to another master by now
    except ResponseError as error:
        return error


def _pack(commands: list[Command]) -> bytes:
    return b"".join([hiredis.pack_command(command) for command in commands])  # type: ignore[arg-type]
