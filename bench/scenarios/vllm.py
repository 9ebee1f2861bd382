"""A real engine: vLLM's own server and Tailrace, one after the other, with the same model, arguments and prompts."""

import asyncio
import contextlib
import json
import os
import shlex
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from bench import systems
from bench.client import STREAM_SECONDS, Stream, start
from bench.measure import CpuMeter, percentile
from bench.scenario import Options, Result, Scenario, Variant
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

WARM, ALONE, ALONE_TOKENS = 3, 30, 8
AT_ONCE, BATCHES, TOKENS = 16, 3, 96
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


async def _measure(system: System) -> Result:
    """First one request at a time, then AT_ONCE at once."""
    alone: list[TextStream] = []
    for seed in range(WARM + ALONE):
        alone.append(TextStream(seed, ALONE_TOKENS))
        await _ask(system, alone[-1:])
    await _ask(system, [TextStream(k, TOKENS // 4) for k in range(AT_ONCE)])
    meter, seconds, together = CpuMeter(system.pids), 0.0, list[TextStream]()
    for batch in range(BATCHES):
        streams = [TextStream(batch * AT_ONCE + k, TOKENS) for k in range(AT_ONCE)]
        seconds += await _ask(system, streams)
        together += streams
    tokens = sum(stream.received for stream in together)
    ttft = [(stream.first_at - stream.sent_at) * 1000 for stream in alone[WARM:]]
    figures = {
        "ttft_p50_ms": percentile(ttft, 0.5),
        "ttft_p99_ms": percentile(ttft, 0.99),
        "tokens_per_s": tokens / seconds,
        **{f"cpu_{name}_us": used / tokens * 1e6 for name, used in meter.used().items()},
    }
    wrong = sum(abs(stream.tokens - stream.received) for stream in [*alone, *together])
    return Result(figures, wrong, [stream.failure for stream in [*alone, *together] if stream.failure])


def _variant(make: Callable[[], AbstractContextManager[System]]) -> Variant:
    def measured(_: Options) -> Result:
        with make() as system:
            return run(_measure(system))

    return measured


VLLM = Scenario(
    "vllm",
    "A real engine, beside vLLM's own server",
    f"SmolLM2-135M on this machine's CPU. {ALONE} requests one at a time, then {BATCHES} times {AT_ONCE} at once with "
    f"{TOKENS} tokens each. Both sides: `{ARGS}`. Each server runs alone, started anew for each round. "
    "`CPU engine` and `CPU worker` contain the model's own arithmetic.",
    {"tailrace": _variant(_tailrace), "vllm": _variant(_own_server)},
    rounds=3,
    needs_vllm=True,
)
