"""Many streams at once at a steady pace: tokens per second, added latency, CPU per token."""

from pathlib import Path

from bench.client import Load, Stream, read_all
from bench.measure import CpuMeter, percentile, profiled
from bench.systems import System, run
from bench.wire import chat_body, post

WARM_TOKENS = 5
OUT = Path(__file__).parents[1] / "out"


def chat_streams(count: int, tokens: int) -> list[Stream]:
    """Streams of OpenAI chat, each with a text of its own."""
    return [Stream(post("/v1/chat/completions", chat_body(k, tokens)), k, tokens) for k in range(count)]


def offered(system: System, streams: int, tokens: int, *, profile: str = "") -> tuple[Load, dict[str, float]]:
    """`streams` answers of `tokens` tokens, all begun at once, on a warm system. The load and its figures."""

    async def once(tokens: int) -> Load:
        return await read_all(chat_streams(streams, tokens), system.ports)

    run(once(WARM_TOKENS))
    with profiled(system.pids.get(profile, ()), OUT / f"{system.name}-{profile}.speedscope.json"):
        meter = CpuMeter(system.pids)
        load = run(once(tokens))
        cpu = meter.used()
    return load, figures(load, cpu)


def figures(load: Load, cpu: dict[str, float]) -> dict[str, float]:
    """Rates per second, latencies in ms, CPU in µs per token."""
    return {
        "tokens_per_s": load.tokens / load.seconds,
        "ttft_p50_ms": percentile(load.ttft, 0.5) * 1000,
        "added_p50_ms": percentile(load.added, 0.5) * 1000,
        "added_p99_ms": percentile(load.added, 0.99) * 1000,
        **{f"cpu_{name}_us": seconds / load.tokens * 1e6 for name, seconds in cpu.items()},
        "wrong": load.wrong,
        "failures": len(load.failures),
    }
