"""Requests as bytes, and how an answer's end is recognised in each protocol."""

import json
from dataclasses import dataclass
from typing import Any

MODEL = "simulated"
MESSAGES = [{"role": "user", "content": "load"}]


@dataclass(frozen=True, slots=True)
class Protocol:
    """How a stream of bytes is cut: a whole message ends with `message_end`; `last` is in the last one."""

    message_end: bytes
    last: bytes


CHAT = Protocol(message_end=b"\n", last=b"data: [DONE]")
NATIVE = Protocol(message_end=b"\n", last=b"event: end")
WEBSOCKET = Protocol(message_end=b"}", last=b'"type":"done"')

UPGRADE = (
    b"GET /v1/ws HTTP/1.1\r\nHost: bench\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)


def chat_body(seed: int, tokens: int, **more: Any) -> dict[str, Any]:
    """A streamed chat of exactly `tokens` tokens; the simulated engine's text depends on the seed."""
    return {"model": MODEL, "messages": MESSAGES, "max_tokens": tokens, "seed": seed, "stream": True, **more}


def post(path: str, body: dict[str, Any]) -> bytes:
    data = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    )
    return head.encode() + data


def get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: bench\r\n\r\n".encode()


def text_frame(message: dict[str, Any]) -> bytes:
    """One masked WebSocket text frame. The mask is zero, which leaves the text as it is."""
    data = json.dumps(message).encode()
    if len(data) < 126:
        return b"\x81" + bytes([0x80 | len(data)]) + bytes(4) + data
    return b"\x81\xfe" + len(data).to_bytes(2, "big") + bytes(4) + data
