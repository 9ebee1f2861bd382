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


class _Answer:
    """One request inside the engine. `news` is done when it has tokens that nobody has taken.

    A bare future of a known loop, because asyncio.Event looks for the running one at each wait: a system call before
    Python 3.12.
    """

    def __init__(self, request: GenerationRequest) -> None:
        body = request.body
        self._loop = asyncio.get_running_loop()
        self.prompt = prompt_text(request.kind, body)
        self.words = len(self.prompt.split())
        self.role = "assistant" if request.kind == "chat" else None
        self.seed = int(body.get("seed") or 0)
        self.n = int(body.get("n") or 1)
        self.limit = int(body.get("max_completion_tokens") or body.get("max_tokens") or DEFAULT_MAX_TOKENS)
        self.expect()

    def expect(self) -> None:
        self.news: asyncio.Future[None] = self._loop.create_future()

    def usage(self, completion_tokens: int) -> Event:
        total = self.words + completion_tokens
        return events.usage(
            {"prompt_tokens": self.words, "completion_tokens": completion_tokens, "total_tokens": total}
        )


class _Sequence:
    """One choice of an answer. `made` has its tokens not yet taken, as the times they were made."""

    def __init__(self, answer: _Answer, index: int, ready_at: float, said: int) -> None:
        self.answer = answer
        self.index = index
        self.ready_at = ready_at
        self.speaking = False
        self.said = said
        self.remaining = answer.limit - said
        self.made: list[float] = []

    def add(self, made_at: float) -> None:
        self.speaking = True
        self.made.append(made_at)
        self.remaining -= 1
        if not self.answer.news.done():
            self.answer.news.set_result(None)

    def take(self, *, stamp: bool) -> Event:
        """What has been made since the last call, as one delta."""
        answer, i, text = self.answer, self.said, ""
        ids: list[int] = []
        for made_at in self.made:
            id = token_id(answer.prompt, answer.seed + self.index, i)
            text += f"{i}:{id:04x}@{made_at:.6f} " if stamp else token_text(i, id)
            ids.append(id)
            i += 1
        event = events.delta(self.index, content=text, token_ids=ids)
        if self.said == 0 and answer.role:
            event["role"] = answer.role
        if i >= answer.limit:
            event["finish_reason"] = "length"
        self.made, self.said = [], i
        return event


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
        answer = _Answer(request)
        done = len(resume.token_ids) if resume else 0
        yield answer.usage(0)
        if resume and resume.delivered.get("finish_reason"):
            yield answer.usage(done)
            return
        ready_at = time.monotonic() + self._vary(self._ttft) + answer.words * self._prefill
        sequences = [_Sequence(answer, index, ready_at, done) for index in range(answer.n)]
        self._requests += 1
        try:
            self._sequences.update(sequence for sequence in sequences if sequence.remaining > 0)
            self._arrived.set()
            if done >= answer.limit:
                yield events.delta(finish_reason="length")  # only one choice can be resumed
            while any(sequence.said < answer.limit for sequence in sequences):
                await answer.news
                answer.expect()
                for sequence in sequences:
                    if sequence.made:
                        yield sequence.take(stamp=self._stamp)
        finally:
            self._sequences.difference_update(sequences)
            self._requests -= 1
        yield answer.usage(answer.n * max(answer.limit, done))

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
                sequence.add(stamp)
                if sequence.remaining == 0:
                    finished.append(sequence)
        self._sequences.difference_update(finished)

    def _vary(self, seconds: float) -> float:
        return seconds * random.uniform(1 - self._jitter, 1 + self._jitter) if self._jitter else seconds
