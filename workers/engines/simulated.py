"""A deterministic token source with the timing of a GPU, for load tests and for those who have no GPU yet.

Token i of an answer is the text `<i>:<h> ` where h is 4 hex digits of a hash of (prompt, seed, i), so that any
reader can tell a lost, doubled or reordered token. Like an engine with continuous batching it works in steps:
each step gives every running request one token, all at the same moment.
"""

import asyncio
import contextlib
import hashlib
import json
import random
import time
from collections.abc import AsyncGenerator
from typing import Any

from common import events
from common.events import Event
from common.settings import Settings
from workers.engines.base import GenerationRequest, Resume

MODEL = "simulated"
DEFAULT_MAX_TOKENS = 256


def prompt_text(kind: str, body: dict[str, Any]) -> str:
    """The text that the hash of every token is taken over."""
    return json.dumps(body["messages"] if kind == "chat" else body["prompt"], sort_keys=True)


def token_id(prompt: str, seed: int, i: int) -> int:
    """The id of token i: a number below 65,536."""
    digest = hashlib.blake2b(f"{seed}\0{i}\0{prompt}".encode(), digest_size=2).digest()
    return int.from_bytes(digest, "big")


def token_text(i: int, id: int) -> str:
    return f"{i}:{id:04x} "


def expected_text(prompt: str, seed: int, count: int) -> str:
    """The whole answer of `count` tokens (without stamps)."""
    return "".join(token_text(i, token_id(prompt, seed, i)) for i in range(count))


class _Sequence:
    """One choice of one request inside the engine: tokens made but not yet taken, as the times they were made."""

    def __init__(self, ready_at: float, remaining: int) -> None:
        self.ready_at = ready_at
        self.speaking = False
        self.remaining = remaining
        self.made: list[float] = []
        self.news = asyncio.Event()


class SimulatedEngine:
    name = "simulated"
    in_process = True
    max_prompt_chars: int | None = None

    def __init__(self, settings: Settings) -> None:
        self.model = settings.served_model_name or MODEL
        self.capacity = settings.sim_slots
        self.max_model_len: int | None = None
        self._ttft = settings.sim_ttft_ms / 1000
        self._itl = settings.sim_itl_ms / 1000
        self._prefill = settings.sim_prefill_ms_per_token / 1000
        self._jitter = settings.sim_jitter
        self._stamp = settings.sim_stamp
        self._sequences: set[_Sequence] = set()
        self._requests = 0
        self._arrived = asyncio.Event()
        self._stepper: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._stepper = asyncio.create_task(self._step_forever(), name="simulated-engine")

    async def stop(self) -> None:
        if self._stepper:
            self._stepper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._stepper

    def resumable(self, request: GenerationRequest) -> bool:
        return int(request.body.get("n") or 1) == 1

    def running(self) -> int:
        return self._requests

    def healthy(self) -> bool:
        return self._stepper is not None and not self._stepper.done()

    async def generate(self, request: GenerationRequest, resume: Resume | None = None) -> AsyncGenerator[Event]:
        prompt = prompt_text(request.kind, request.body)
        words = len(prompt.split())
        n = int(request.body.get("n") or 1)
        limit = int(request.body.get("max_completion_tokens") or request.body.get("max_tokens") or DEFAULT_MAX_TOKENS)
        done = len(resume.token_ids) if resume else 0
        yield _usage(words, 0)
        if resume and resume.delivered.get("finish_reason"):
            yield _usage(words, done)
            return
        self._requests += 1
        try:
            streams = [self._choice(request, prompt, words, index, done, limit) for index in range(n)]
            async with contextlib.aclosing(_merged(streams)) as merged:
                async for event in merged:
                    yield event
        finally:
            self._requests -= 1
        yield _usage(words, n * max(limit, done))

    async def _choice(
        self, request: GenerationRequest, prompt: str, words: int, index: int, done: int, limit: int
    ) -> AsyncGenerator[Event]:
        seed = int(request.body.get("seed") or 0) + index
        now = time.monotonic()
        sequence = _Sequence(now + self._vary(self._ttft) + words * self._prefill, limit - done)
        if sequence.remaining > 0:
            self._sequences.add(sequence)
            self._arrived.set()
        try:
            i = done
            while i < limit:
                await sequence.news.wait()
                sequence.news.clear()
                made, sequence.made = sequence.made, []
                ids = [token_id(prompt, seed, i + k) for k in range(len(made))]
                text = "".join(self._text(i + k, id, made[k]) for k, id in enumerate(ids))
                event = events.delta(index, content=text, token_ids=ids)
                if i == 0 and request.kind == "chat":
                    event["role"] = "assistant"
                i += len(made)
                if i >= limit:
                    event["finish_reason"] = "length"
                yield event
            if done >= limit:
                yield events.delta(index, finish_reason="length")
        finally:
            self._sequences.discard(sequence)

    def _text(self, i: int, id: int, made_at: float) -> str:
        return f"{i}:{id:04x}@{made_at:.6f} " if self._stamp else token_text(i, id)

    async def _step_forever(self) -> None:
        next_step = time.monotonic()
        while True:
            self._arrived.clear()
            if not self._sequences:
                await self._arrived.wait()
                next_step = time.monotonic()
                continue
            now = time.monotonic()
            self._step(now, whole_batch=now >= next_step)
            if now >= next_step:
                # Absolute schedule: the time spent in a step does not make the engine slower.
                next_step = max(next_step + self._vary(self._itl), now)
            prefills = [sequence.ready_at for sequence in self._sequences if not sequence.speaking]
            wait = min([next_step, *prefills]) - time.monotonic()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, wait)):
                    await self._arrived.wait()

    def _step(self, now: float, *, whole_batch: bool) -> None:
        """One token for every sequence of the batch, or only for those whose prefill is over."""
        stamp = time.time()
        finished = []
        for sequence in self._sequences:
            if sequence.ready_at <= now and (whole_batch or not sequence.speaking):
                sequence.speaking = True
                sequence.made.append(stamp)
                sequence.news.set()
                sequence.remaining -= 1
                if sequence.remaining == 0:
                    finished.append(sequence)
        self._sequences.difference_update(finished)

    def _vary(self, seconds: float) -> float:
        return seconds * random.uniform(1 - self._jitter, 1 + self._jitter) if self._jitter else seconds


def _usage(prompt_tokens: int, completion_tokens: int) -> Event:
    total = prompt_tokens + completion_tokens
    return events.usage({"prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens, "total_tokens": total})


async def _merged(streams: list[AsyncGenerator[Event]]) -> AsyncGenerator[Event]:
    """Events of several choices as they come. One choice needs no machinery."""
    if len(streams) == 1:
        async with contextlib.aclosing(streams[0]) as stream:
            async for event in stream:
                yield event
        return
    queue: asyncio.Queue[Event | None] = asyncio.Queue(maxsize=1)

    async def feed(stream: AsyncGenerator[Event]) -> None:
        async for event in stream:
            await queue.put(event)
        await queue.put(None)

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(feed(stream)) for stream in streams]
        try:
            left = len(tasks)
            while left:
                said = await queue.get()
                if said is None:
                    left -= 1
                else:
                    yield said
        finally:
            for task in tasks:
                task.cancel()
