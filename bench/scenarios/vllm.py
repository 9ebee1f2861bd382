"""A real engine: vLLM's own server and Tailrace, by turns, with the same model, arguments and prompts.

Both live all the time and one of them works. A model's step on a CPU takes up to half as long again in one minute as
in the next, which is ten times what there is to find: so the two take turns request by request, and batch by batch.
"""

import asyncio
import contextlib
import json
import os
import shlex
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bench import systems
from bench.client import STREAM_SECONDS, Stream, start
from bench.measure import CpuMeter, percentile
from bench.scenario import Options, Result, Scenario
from bench.systems import System, run, wait_until_live
from bench.wire import post
from tests.support.processes import ROOT, Process, free_port
from workers.engines import smallmodel

MODEL = "smollm2"
# Said to both, so that no default of one side can make a difference.
ARGS = (
    f"--served-model-name {MODEL} --dtype float32 --max-num-seqs 16 --max-model-len 2048 "
    "--kv-cache-memory-bytes 1073741824 --enforce-eager"
)
ENVIRONMENT = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_NUM_OF_RESERVED_CPU": "0"}
START_SECONDS = 240.0

WARM, ALONE, ALONE_TOKENS = 3, 60, 8
AT_ONCE, BATCHES, TOKENS = 16, 6, 96
REST_SECONDS = 0.3
"""Between turns: OpenMP's threads go on spinning for up to 0.2 s after their work."""
TOPICS = ("rivers", "bread", "the moon", "trains", "bees", "glass", "winter", "maps")


class TextStream(Stream):
    """Reads a real answer: when its first text came, and all bytes for later."""

    def __init__(self, seed: int, tokens: int) -> None:
        super().__init__(post("/v1/chat/completions", _body(seed, tokens)), seed, tokens)
        self._raw = bytearray()

    def data_received(self, data: bytes) -> None:
        if not self._raw:
            self._head(data)
        self._raw += data
        if not self.first_at and self._has_text(data):
            self.first_at = time.time()
        if b"data: [DONE]" in data:
            self.ended = True
            self.received = self._counted()
            self.leave()

    @staticmethod
    def _has_text(data: bytes) -> bool:
        """vLLM's first chunk has a role and an empty text."""
        return b'"content":"' in data.replace(b'"content":""', b"")

    def _counted(self) -> int:
        """The engine's own count of the tokens it made; 0 when the answer does not say."""
        for line in reversed(self._raw.decode().split("\n")):
            if line.startswith("data: {") and (usage := json.loads(line[6:]).get("usage")):
                return int(usage["completion_tokens"])
        return 0


def _body(seed: int, tokens: int) -> dict[str, Any]:
    question = f"Tell me something about {TOPICS[seed % len(TOPICS)]}, part {seed}."
    return {
        "model": MODEL,
        "messages": [{"role": "user", "content": question}],
        "max_tokens": tokens,
        "ignore_eos": True,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


@contextlib.contextmanager
def _own_server() -> Iterator[System]:
    """vLLM's own server; its access log is off, as Tailrace has none."""
    port = free_port()
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--port", str(port)]
    command += ["--model", str(_model()), *shlex.split(ARGS), "--disable-uvicorn-access-log"]
    with tempfile.TemporaryDirectory(prefix="tailrace-bench-") as folder:
        process = Process("vllm", command, Path(folder), ENVIRONMENT)
        try:
            wait_until_live(f"http://127.0.0.1:{port}/health", process, START_SECONDS)
            yield System("vllm", [port], {"engine": [process.pid], "client": [os.getpid()]}, Path(folder))
        finally:
            process.kill()


@contextlib.contextmanager
def _tailrace() -> Iterator[System]:
    os.environ.update(ENVIRONMENT)
    with systems.tailrace(engine="vllm", model=_model(), served_model_name=MODEL, vllm_args=ARGS) as system:
        yield system


def _model() -> Path:
    return smallmodel.prepare(ROOT / ".tailrace" / "models" / smallmodel.FOLDER_NAME)


async def _ask(system: System, streams: list[TextStream]) -> float:
    begun = time.monotonic()
    async with asyncio.timeout(STREAM_SECONDS):
        await asyncio.gather(*(start(stream, system.ports[0]) for stream in streams))
        await asyncio.gather(*(stream.done for stream in streams))
    return time.monotonic() - begun


class Side:
    """One of the two servers, and what it did."""

    def __init__(self, system: System) -> None:
        self._system = system
        self._alone: list[TextStream] = []
        self._together: list[TextStream] = []
        self._seconds = 0.0
        self._cpu: Counter[str] = Counter()

    async def alone(self, seed: int) -> None:
        self._alone.append(TextStream(seed, ALONE_TOKENS))
        await _ask(self._system, self._alone[-1:])

    async def together(self, batch: int) -> None:
        streams = [TextStream(batch * AT_ONCE + k, TOKENS) for k in range(AT_ONCE)]
        meter = CpuMeter(self._system.pids)
        self._seconds += await _ask(self._system, streams)
        self._cpu.update(meter.used())
        self._together += streams

    def result(self) -> Result:
        ttft = [(stream.first_at - stream.sent_at) * 1000 for stream in self._alone]
        tokens = sum(stream.received for stream in self._together)
        figures = {
            "ttft_p50_ms": percentile(ttft, 0.5),
            "ttft_p99_ms": percentile(ttft, 0.99),
            "tokens_per_s": tokens / self._seconds,
            **{f"cpu_{name}_us": used / tokens * 1e6 for name, used in self._cpu.items()},
        }
        streams = [*self._alone, *self._together]
        wrong = sum(abs(stream.tokens - stream.received) for stream in streams)
        return Result(figures, wrong, [stream.failure for stream in streams if stream.failure])


async def _take_turns(servers: dict[str, System], say: Callable[[str], None]) -> dict[str, Result]:
    say("vllm: warming up")
    warm = [Side(system) for system in servers.values()]
    for seed in range(WARM):
        for side in warm:
            await side.alone(seed)
    for side in warm:
        await side.together(0)
    sides = {name: Side(system) for name, system in servers.items()}
    say(f"vllm: {ALONE} requests, one at a time")
    for turn in range(ALONE):
        for side in _in_turn(sides, turn):
            await asyncio.sleep(REST_SECONDS)
            await side.alone(WARM + turn)
    for turn in range(BATCHES):
        say(f"vllm: {AT_ONCE} at once, batch {turn + 1}")
        for side in _in_turn(sides, turn):
            await asyncio.sleep(REST_SECONDS)
            await side.together(turn)
    return {name: side.result() for name, side in sides.items()}


def _in_turn(sides: dict[str, Side], turn: int) -> list[Side]:
    """Who was second is first in the next turn."""
    return list(sides.values())[:: -1 if turn % 2 else 1]


class ByTurns(Scenario):
    """Measures its two variants in one run of both."""

    def run(self, options: Options, say: Callable[[str], None]) -> dict[str, Result]:
        say("vllm: starting both servers")
        with _tailrace() as ours, _own_server() as theirs:
            return run(_take_turns({"tailrace": ours, "vllm": theirs}, say))


VLLM = ByTurns(
    "vllm",
    "A real engine, beside vLLM's own server",
    f"SmolLM2-135M on this machine's CPU. Both servers live and take turns: {ALONE} requests one at a time, each to "
    f"one server and then to the other; then {BATCHES} times {AT_ONCE} at once with {TOKENS} tokens each, likewise. "
    f"Both have `{ARGS}`. `CPU engine` and `CPU worker` contain the model's own arithmetic.",
    variants={},  # not one after the other: see ByTurns
    rounds=1,
    needs_vllm=True,
)
