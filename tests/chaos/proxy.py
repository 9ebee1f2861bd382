"""A link between one process and Redis that can be cut, hold everything back, swallow replies, or be slow."""

import asyncio
import contextlib
from typing import Literal

Mode = Literal["open", "cut", "hold", "mute", "slow"]
SLOW_SECONDS = 0.2


class Link:
    """`hold`: a partition as TCP sees it, what was sent arrives when it heals. `mute`: commands still reach Redis and
    are carried out, their replies never come. `cut`: connections break at once, and new ones are refused. `slow`: every
    reply is late."""

    def __init__(self, port: int, redis_port: int) -> None:
        self.port = port
        self.redis_port = redis_port
        self._mode: Mode = "open"
        self._moving = asyncio.Event()
        self._moving.set()
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)

    async def stop(self) -> None:
        self.set("cut")
        if self._server:
            self._server.close()

    def set(self, mode: Mode) -> None:
        # After `mute` the two sides do not agree on which reply is next, so those connections cannot live on.
        if mode == "cut" or self._mode == "mute":
            for writer in list(self._writers):
                writer.transport.abort()
        self._mode = mode
        if mode == "hold":
            self._moving.clear()
        else:
            self._moving.set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._mode == "cut":
            writer.transport.abort()
            return
        try:
            redis_reader, redis_writer = await asyncio.open_connection("127.0.0.1", self.redis_port)
        except OSError:
            writer.transport.abort()
            return
        both = {writer, redis_writer}
        self._writers |= both
        try:
            pumps = [
                asyncio.create_task(self._pump(reader, redis_writer, replies=False)),
                asyncio.create_task(self._pump(redis_reader, writer, replies=True)),
            ]
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
        finally:
            self._writers -= both
            for one in both:
                one.transport.abort()

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, *, replies: bool) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(65_536):
                await self._moving.wait()
                if replies and self._mode == "slow":
                    await asyncio.sleep(SLOW_SECONDS)
                if not (replies and self._mode == "mute"):
                    sink.write(data)
                    await sink.drain()
