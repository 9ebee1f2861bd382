"""What cancelling is worth: clients that leave in the middle, with and without their jobs being cancelled."""

import asyncio
import time
from collections.abc import Iterator

import httpx

from bench import systems
from bench.client import Load, Stream, start
from bench.measure import CpuMeter, percentile
from bench.scenario import Options, Result, Scenario, Variant
from bench.systems import System, run
from bench.wire import NATIVE, chat_body, get, post

CLIENTS, REQUESTS, SLOTS, TOKENS, LEAVE_AT, ITL_MS = 300, 900, 64, 256, 50, 10
VIEWERS, OTHERS_SEED, LONG = 150, 1_000_000, 100_000


def _leaves(seed: int) -> bool:
    """Three in ten, the same ones in every run."""
    return seed % 10 in (1, 4, 8)


def _streams(requests: int, on_disconnect: str) -> Iterator[Stream]:
    for seed in range(requests):
        body = chat_body(seed, TOKENS, tailrace={"on_disconnect": on_disconnect})
        leave_at = LEAVE_AT if _leaves(seed) else None
        yield Stream(post("/v1/chat/completions", body), seed, TOKENS, leave_at=leave_at)


async def _serve(system: System, requests: int, on_disconnect: str, viewers: int) -> Load:
    """CLIENTS clients, each with its next request as soon as it is done with one, beside `viewers` of one long job."""
    waiting = _streams(requests, on_disconnect)
    begun: list[Stream] = []

    async def client() -> None:
        for stream in waiting:
            begun.append(await start(stream, system.ports[0]))
            await stream.done

    others = await _viewers(system, viewers)
    at = time.monotonic()
    await asyncio.gather(*(client() for _ in range(CLIENTS)))
    seconds = time.monotonic() - at
    for viewer in others:
        viewer.leave()
    return Load(begun, seconds)


async def _viewers(system: System, count: int) -> list[Stream]:
    """Readers of one answer that does not end: work for the pod, and hardly any for Redis and the engine."""
    if not count:
        return []
    body = chat_body(OTHERS_SEED, LONG, tailrace={"on_disconnect": "cancel", "grace_seconds": 5})
    async with httpx.AsyncClient(base_url=system.url) as client:
        path = f"/v1/jobs/{(await client.post('/v1/jobs', json=body)).json()['id']}/events"
    viewers = [Stream(get(path), OTHERS_SEED, LONG, protocol=NATIVE) for _ in range(count)]
    await asyncio.gather(*(start(viewer, system.ports[0]) for viewer in viewers))
    return viewers


def _variant(on_disconnect: str, viewers: int = 0) -> Variant:
    def measured(options: Options) -> Result:
        requests = REQUESTS // 2 if options.quick else REQUESTS
        with systems.tailrace(probed=True, sim_itl_ms=ITL_MS, sim_slots=SLOTS + bool(viewers)) as system:
            meter = CpuMeter(system.pids)
            load = run(_serve(system, requests, on_disconnect, viewers))
            api = meter.used()["api"]
            made = system.probe().made
        made_in_all = sum(made[stream.seed] for stream in load.streams)
        useful = sum(stream.received for stream in load.streams if not _leaves(stream.seed))
        wasted = made_in_all - load.tokens
        figures = {
            "useful_tokens_per_s": useful / load.seconds,
            "ttft_p50_ms": percentile(load.ttft, 0.5) * 1000,
            "ttft_p90_ms": percentile(load.ttft, 0.9) * 1000,
            "made": made_in_all,
            "wasted": wasted,
            "wasted_pct": 100 * wasted / made_in_all,
            "api_busy_pct": 100 * api / load.seconds,
        }
        return Result(figures, load.wrong, load.failures, {"ttft_s": sorted(load.ttft)})

    return measured


ABANDONED = Scenario(
    "abandoned",
    "300 clients, 64 slots, three in ten leave at token 50",
    f"{REQUESTS} requests of {TOKENS} tokens by {CLIENTS} clients; the engine makes 6,400 tokens/s. Useful are the "
    "tokens of clients that stay. Wasted is what the engine made for those that leave beyond what they had read, by a "
    "probe around the engine. `continue`: with `on_disconnect=continue`. `busy`: the pod also serves "
    f"{VIEWERS} viewers of one endless answer.",
    {"cancel": _variant("cancel"), "continue": _variant("continue"), "busy": _variant("cancel", VIEWERS)},
    rounds=2,
    quick_variants=("cancel", "continue"),
)
