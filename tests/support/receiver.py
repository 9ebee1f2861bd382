"""A receiver of webhooks: a small HTTP server in the test's own loop that does what it is told."""

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Self

HANG = 0
"""Instead of a status: take the request and never answer."""


@dataclass(frozen=True, slots=True)
class Received:
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def id(self) -> str:
        return self.headers["webhook-id"]

    @property
    def event(self) -> Any:
        return json.loads(self.body)


@dataclass
class Receiver:
    """Answers with the next of `answers` (a status, or a status and headers), and with 204 once they are used up."""

    answers: Iterator[int | tuple[int, str]] = field(default_factory=lambda: iter(()))
    received: list[Received] = field(default_factory=list)
    port: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook?token=secret"

    def about(self, job_id: str) -> list[Received]:
        return [received for received in self.received if received.event["data"]["id"] == job_id]

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            self.received.append(await _request(reader))
            answer = next(self.answers, 204)
            status, header = answer if isinstance(answer, tuple) else (answer, "X-Nothing: 0")
            if status == HANG:
                await reader.read()  # until the sender gives up
                return
            writer.write(f"HTTP/1.1 {status} Told\r\n{header}\r\nContent-Length: 0\r\n\r\n".encode())
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()


async def _request(reader: asyncio.StreamReader) -> Received:
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    first, *rest = head.strip().split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in rest)}
    return Received(first.split()[1], headers, await reader.readexactly(int(headers["content-length"])))
