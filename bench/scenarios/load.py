"""Many streams at once at a steady pace: tokens per second, added latency, CPU per token."""

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

from bench import systems
from bench.client import Load, Stream, read_all
from bench.measure import CpuMeter, percentile, profiled
from bench.scenario import Options, Result, Scenario, Variant
from bench.systems import System, run
from bench.wire import chat_body, post

WARM_TOKENS = 5
TTFT_MS = 50
OUT = Path(__file__).parents[1] / "out"
PLOT_PERCENTILES = (1, 5, 10, 25, 50, 75, 90, 95, 99, 99.9)


def chat_streams(count: int, tokens: int) -> list[Stream]:
    """Streams of OpenAI chat, each with a text of its own."""
    return [Stream(post("/v1/chat/completions", chat_body(k, tokens)), k, tokens) for k in range(count)]


def offered(
    system: System,
    streams: int,
    tokens: int,
    *,
    make: Callable[[int, int], list[Stream]] = chat_streams,
    profile: str = "",
) -> Result:
    """`streams` answers of `tokens` tokens, all begun at once, on a warm system."""

    async def once(tokens: int) -> Load:
        return await read_all(make(streams, tokens), system.ports)

    run(once(WARM_TOKENS))
    with profiled(system.pids.get(profile, ()), OUT / f"{system.name}-{profile}.speedscope.json"):
        meter = CpuMeter(system.pids)
        load = run(once(tokens))
        cpu = meter.used()
    return result(load, cpu)


def result(load: Load, cpu: dict[str, float]) -> Result:
    """Rates per second, latencies in ms, CPU in µs per token. Steady: without each stream's first quarter.

    The difference is what the start costs, when all clients connect and submit at the same moment.
    """
    steady = [value for stream in load.streams for value in stream.added[stream.tokens // 4 :]]
    figures = {
        "tokens_per_s": load.tokens / load.seconds,
        "ttft_p50_ms": percentile(load.ttft, 0.5) * 1000,
        "added_p50_ms": percentile(load.added, 0.5) * 1000,
        "added_p99_ms": percentile(load.added, 0.99) * 1000,
        "steady_added_p50_ms": percentile(steady, 0.5) * 1000,
        "steady_added_p99_ms": percentile(steady, 0.99) * 1000,
        **{f"cpu_{name}_us": seconds / load.tokens * 1e6 for name, seconds in cpu.items()},
        "cores_busy_pct": 100 * sum(cpu.values()) / load.seconds / (os.cpu_count() or 1),
    }
    added = [percentile(load.added, share / 100) * 1000 for share in PLOT_PERCENTILES]
    return Result(figures, load.wrong, load.failures, {"added_ms": added})


def _variant(
    make: Callable[..., AbstractContextManager[System]], streams: int, tokens: int, itl_ms: int, **settings: int
) -> Variant:
    def measured(options: Options) -> Result:
        pods = {"apis": options.apis, **settings} if make is systems.tailrace else settings
        with make(sim_ttft_ms=TTFT_MS, sim_itl_ms=itl_ms, sim_slots=streams, **pods) as system:
            return offered(system, streams, tokens // 2 if options.quick else tokens, profile=options.profile)

    return measured


def _all(streams: int, tokens: int, itl_ms: int) -> dict[str, Variant]:
    makers = (systems.tailrace, systems.direct, systems.proxy, systems.per_client)
    return {make.__name__: _variant(make, streams, tokens, itl_ms) for make in makers}


BASELINES = (
    "`direct` is the same engine in an OpenAI-style server of its own, `proxy` a FastAPI + httpx proxy before it, "
    "`per_client` reads Tailrace's streams with one connection and one XREAD per viewer instead of the hub."
)

LOAD_300 = Scenario(
    "load_300",
    "300 streams at 50 tokens/s each",
    f"300 OpenAI chat streams of 256 tokens, all begun at once, 20 ms between tokens. {BASELINES}",
    _all(300, 256, 20),
    quick_variants=("tailrace", "direct", "proxy"),
)
LOAD_30 = Scenario(
    "load_30",
    "30 streams at 20 tokens/s each",
    f"30 OpenAI chat streams of 100 tokens, 50 ms between tokens: nobody is saturated. {BASELINES}",
    _all(30, 100, 50),
    rounds=2,
    quick_variants=("tailrace",),
)
GROWTH = Scenario(
    "growth",
    "Cost per token as streams grow",
    "100 and 1,000 chat streams of 80 tokens, 10 tokens/s each, through one API process.",
    {str(n): _variant(systems.tailrace, n, 80, 100) for n in (100, 1000)},
    rounds=2,
)
SCALING = Scenario(
    "scaling",
    "More API processes on the same machine",
    "300 chat streams of 256 tokens, 20 ms between tokens, spread over 1, 2 and 3 API processes. They share the "
    "cores with Redis, the worker with its engine, and the client.",
    {str(n): _variant(systems.tailrace, 300, 256, 20, apis=n) for n in (1, 2, 3)},
    rounds=2,
    quick_variants=("2",),
)
