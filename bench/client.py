"""A load client that costs so little that it can share two cores with what it measures.

One asyncio protocol per answer. Tokens are found in the raw bytes, without parsing HTTP, SSE or JSON: the
simulated engine's `<i>:<hash>@<unix seconds> ` occurs nowhere else. Each i must follow the one before; the
hashes are compared after the run.
"""

import asyncio
import re
import time
from array import array
from dataclasses import dataclass, field
from typing import cast

from bench.wire import CHAT, MESSAGES, Protocol
from workers.engines.simulated import prompt_text, token_id

TOKEN = re.compile(rb"(\d+):([0-9a-f]{4})@(\d+\.\d+) ")
STREAM_SECONDS = 300.0
"""An answer that takes longer has failed."""
FROZEN_RECEIVE_BYTES = 4096
"""The kernel's buffer of a reader that will freeze: little, so that the server feels it soon."""


class Stream(asyncio.Protocol):
    """Reads one answer. `done` is set when the end has come, the reader has left, or the connection broke."""

    def __init__(
        self,
        request: bytes,
        seed: int,
        tokens: int,
        *,
        protocol: Protocol = CHAT,
        frame: bytes = b"",
        leave_at: int | None = None,
        freeze_at: int | None = None,
    ) -> None:
        """`frame`: sent after the answer to `request`, an upgrade to WebSocket. `leave_at`, `freeze_at`: tokens."""
        self.seed, self.tokens = seed, tokens
        self.received = 0
        self.misplaced = 0
        self.ended = False
        self.failure = ""
        self.sent_at = self.first_at = self.left_at = 0.0
        self.longest_silence = 0.0
        self.added = array("d")
        self.job_id = ""
        self.done = asyncio.get_running_loop().create_future()
        self.transport: asyncio.Transport | None = None
        self._request, self._frame = request, frame
        self._message_end, self._last = protocol.message_end, protocol.last
        self._leave_at, self._freeze_at = leave_at, freeze_at
        self._last_at = 0.0
        self._rest = b""
        self._digests = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is not a subclass
        self.sent_at = time.time()
        self.transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        now = time.time()
        if not self._last_at:
            self._head(data)
        if self._rest:
            data = self._rest + data
        whole = data.rfind(self._message_end) + 1
        self._rest = data[whole:]
        for i, digest, made in TOKEN.findall(data, 0, whole):
            if int(i) != self.received:
                self.misplaced += 1
            self.received += 1
            self._digests += digest
            self.added.append(now - float(made))
        if self.received and not self.first_at:
            self.first_at = now
        elif now - self._last_at > self.longest_silence:
            self.longest_silence = now - self._last_at
        self._last_at = now
        if self._last in data:
            self.ended = True
            self.leave()
        elif self._leave_at is not None and self.received >= self._leave_at:
            self.leave()
        elif self._freeze_at is not None and self.received >= self._freeze_at:
            self._freeze()

    def connection_lost(self, error: Exception | None) -> None:
        if not self.done.done():
            self.failure = self.failure or f"cut after {self.received} of {self.tokens} tokens: {error}"
            self.done.set_result(None)

    def leave(self) -> None:
        """Close the connection."""
        self.left_at = time.time()
        if self.transport:
            self.transport.abort()
        if not self.done.done():
            self.done.set_result(None)

    def wrong(self) -> int:
        """Tokens lost, doubled, reordered or false, against what the engine makes. After the run.

        A connection that broke is a failure, not lost tokens.
        """
        prompt = prompt_text("chat", {"messages": MESSAGES})
        expected = "".join(f"{token_id(prompt, self.seed, i):04x}" for i in range(self.received)).encode()
        false = sum(expected[k : k + 4] != self._digests[k : k + 4] for k in range(0, len(expected), 4))
        lost = abs(self.tokens - self.received) if self.ended else 0
        return max(false, self.misplaced) + lost

    def _head(self, data: bytes) -> None:
        """The first bytes of the answer."""
        if self._frame and data.startswith(b"HTTP/1.1 101"):
            assert self.transport
            self.transport.write(self._frame)
        elif not data.startswith(b"HTTP/1.1 200"):
            self.failure = data[:400].decode(errors="replace")
            self.leave()
        elif at := data.lower().find(b"x-job-id: ") + 1:
            self.job_id = data[at + 9 : data.find(b"\r", at)].decode()

    def _freeze(self) -> None:
        assert self.transport
        self.transport.pause_reading()
        self._freeze_at = None


@dataclass
class Load:
    """What came of a number of streams. Times in seconds."""

    streams: list[Stream]
    seconds: float
    added: "array[float]" = field(default_factory=lambda: array("d"))
    """From the moment the engine made a token to its arrival here."""
    ttft: list[float] = field(default_factory=list)
    tokens: int = 0
    wrong: int = 0
    failures: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        for stream in self.streams:
            self.added += stream.added
            self.tokens += stream.received
            self.wrong += stream.wrong()
            if stream.first_at:
                self.ttft.append(stream.first_at - stream.sent_at)
            if stream.failure:
                self.failures.append(stream.failure)


async def start(stream: Stream, port: int) -> Stream:
    """Connect and send the request."""
    await asyncio.get_running_loop().create_connection(lambda: stream, "127.0.0.1", port)
    return stream


async def read_all(streams: list[Stream], ports: list[int], *, at_once: int = 300) -> Load:
    """Every stream to its end, spread over `ports`; at most `at_once` connect in the same moment."""
    begun = time.monotonic()
    for first in range(0, len(streams), at_once):
        some = range(first, min(first + at_once, len(streams)))
        await asyncio.gather(*(start(streams[k], ports[k % len(ports)]) for k in some))
    async with asyncio.timeout(STREAM_SECONDS):
        await asyncio.gather(*(stream.done for stream in streams))
    return Load(streams, time.monotonic() - begun)
