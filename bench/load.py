"""A load client: many chat streams at once, each token checked and its added latency taken from the engine's stamp."""

import asyncio
import json
import re
import time
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.support.client import lines
from workers.engines.simulated import prompt_text, token_id

TOKEN = re.compile(r"(\d+):([0-9a-f]{4})@(\d+\.\d+) ")


@dataclass
class Load:
    """Results of one run. Latencies in seconds, from the moment the engine made a token to its arrival here."""

    added: list[float] = field(default_factory=list)
    tokens: int = 0
    wrong: int = 0
    seconds: float = 0.0


async def run_load(url: str, model: str, streams: int, tokens: int) -> Load:
    """`streams` chats of `tokens` tokens at once through the pod at `url`."""
    load = Load()
    limits = httpx.Limits(max_connections=streams)
    begun = time.monotonic()
    async with httpx.AsyncClient(base_url=url, timeout=120, limits=limits) as client:
        await asyncio.gather(*(_stream(client, load, model, i, tokens) for i in range(streams)))
    load.seconds = time.monotonic() - begun
    return load


async def _stream(client: httpx.AsyncClient, load: Load, model: str, seed: int, tokens: int) -> None:
    body: dict[str, Any] = {
        "model": model,
        "messages": [{"role": "user", "content": "load"}],
        "max_tokens": tokens,
        "seed": seed,
        "stream": True,
    }
    prompt, expected = prompt_text("chat", body), 0
    async with client.stream("POST", "/v1/chat/completions", json=body) as response:
        response.raise_for_status()
        async for line in lines(response):
            if not line.startswith("data: {"):
                continue
            now = time.time()
            for choice in json.loads(line[6:])["choices"]:
                for i, digest, made in TOKEN.findall(choice["delta"].get("content") or ""):
                    load.wrong += int(i) != expected or int(digest, 16) != token_id(prompt, seed, int(i))
                    load.added.append(now - float(made))
                    expected = int(i) + 1
    load.tokens += expected
    load.wrong += tokens - expected
