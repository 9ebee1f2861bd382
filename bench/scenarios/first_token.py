"""One request at a time: how soon the engine is called, and how soon the first token is back."""

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager

from bench import systems
from bench.client import Load, Stream, read_all
from bench.measure import percentile
from bench.scenario import Options, Result, Scenario, Variant
from bench.systems import System, run
from bench.wire import chat_body, post

REQUESTS = 300
PAUSE_SECONDS = 0.01
"""Between two requests, so that the worker is idle again."""
WARM = 20


async def _one_by_one(system: System, count: int) -> list[Load]:
    loads = []
    for seed in range(count):
        stream = Stream(post("/v1/chat/completions", chat_body(seed, 1)), seed, 1)
        loads.append(await read_all([stream], system.ports))
        await asyncio.sleep(PAUSE_SECONDS)
    return loads


def _variant(make: Callable[..., AbstractContextManager[System]], **settings: bool) -> Variant:
    def measured(options: Options) -> Result:
        with make(sim_ttft_ms=0, sim_itl_ms=1, sim_slots=4, **settings) as system:
            loads = run(_one_by_one(system, WARM + (REQUESTS // 3 if options.quick else REQUESTS)))[WARM:]
            ttft = [load.ttft[0] * 1000 for load in loads if load.ttft]
            figures = {"ttft_p50_ms": percentile(ttft, 0.5), "ttft_p99_ms": percentile(ttft, 0.99)}
            if settings.get("probed"):
                calls = system.probe().called
                waits = [(calls[s.seed] - s.sent_at) * 1000 for load in loads for s in load.streams]
                figures["engine_call_p50_ms"] = percentile(waits, 0.5)
                figures["engine_call_p99_ms"] = percentile(waits, 0.99)
        failures = [failure for load in loads for failure in load.failures]
        return Result(figures, sum(load.wrong for load in loads), failures)

    return measured


FIRST_TOKEN = Scenario(
    "first_token",
    "An idle system, one request at a time",
    "300 chats of one token from an engine that answers at once. `engine_call`: from the moment the client has "
    "connected and sends its request to the engine's call in the worker, by a probe around the engine.",
    {
        "tailrace": _variant(systems.tailrace, probed=True),
        "direct": _variant(systems.direct),
        "proxy": _variant(systems.proxy),
    },
)
