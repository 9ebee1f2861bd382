"""How soon the engine hears that an answer is not wanted any more."""

import asyncio
import random
import time
from collections.abc import Iterable

import httpx

from bench import systems
from bench.client import Stream, start
from bench.measure import percentile
from bench.probe import Probe
from bench.scenario import Figures, Options, Result, Scenario
from bench.systems import System, run
from bench.wire import chat_body, post
from tests.support.wait import until

RUNNING = 300
CANCELS = 100
GAP_SECONDS = 0.02
"""Mean time between two cancels; varied, so that they do not keep step with the worker's polls."""
SETTLE_SECONDS = 2.0
"""After hundreds of clients have connected at once."""
LONG = 100_000
"""Tokens of an answer that nobody reads to its end."""

PREFILL_SECONDS = 2.0
SLOTS, QUEUED = 4, 16


def _long_streams(count: int, first_seed: int = 0) -> list[Stream]:
    seeds = range(first_seed, first_seed + count)
    return [Stream(post("/v1/chat/completions", chat_body(seed, LONG)), seed, LONG) for seed in seeds]


async def _stop_some(system: System, count: int) -> tuple[dict[int, float], list[Stream]]:
    """While RUNNING jobs run: `count` are cancelled by request, the readers of `count` others close their connection.

    Others wait and take their places. Returns when each cancel was sent, by seed, and the streams that were closed.
    """
    streams = _long_streams(RUNNING + 2 * count)
    await asyncio.gather(*(start(stream, system.ports[0]) for stream in streams))
    await until(lambda: _all_slots_taken(streams), f"{RUNNING} jobs run", 60)
    await asyncio.sleep(SETTLE_SECONDS)
    running = [stream for stream in streams if stream.first_at]
    random.Random(1).shuffle(running)
    cancelled, left = running[:count], running[count : 2 * count]
    sent_at: dict[int, float] = {}
    async with httpx.AsyncClient(base_url=system.url, timeout=30) as client, asyncio.TaskGroup() as requests:
        for one, other in zip(cancelled, left, strict=True):
            sent_at[one.seed] = time.time()
            requests.create_task(_cancel(client, one))
            await _gap()
            other.leave()
            await _gap()
    await asyncio.gather(*(stream.done for stream in cancelled))
    _close(streams)
    return sent_at, left


async def _cancel(client: httpx.AsyncClient, stream: Stream) -> None:
    (await client.post(f"/v1/jobs/{stream.job_id}/cancel")).raise_for_status()


async def _gap() -> None:
    await asyncio.sleep(GAP_SECONDS * random.uniform(0.5, 1.5))


async def _all_slots_taken(streams: list[Stream]) -> bool:
    return sum(bool(stream.first_at) for stream in streams) >= RUNNING


def _close(streams: Iterable[Stream]) -> None:
    for stream in streams:
        if not stream.done.done():
            stream.leave()


def _cancel_running(options: Options) -> Result:
    with systems.tailrace(probed=True, sim_ttft_ms=0, sim_itl_ms=50, sim_slots=RUNNING) as system:
        sent_at, left = run(_stop_some(system, CANCELS // 2 if options.quick else CANCELS))
        aborted = system.probe().aborted
    by_request = [(aborted[seed] - at) * 1000 for seed, at in sent_at.items() if seed in aborted]
    by_leaving = [(aborted[stream.seed] - stream.left_at) * 1000 for stream in left if stream.seed in aborted]
    missing = len(sent_at) + len(left) - len(by_request) - len(by_leaving)
    figures = {**_percentiles("cancel", by_request), **_percentiles("leave", by_leaving), "never_aborted": missing}
    return Result(figures, series={"cancel_ms": sorted(by_request), "leave_ms": sorted(by_leaving)})


def _percentiles(name: str, values: list[float]) -> Figures:
    return {f"{name}_p50_ms": percentile(values, 0.5), f"{name}_p99_ms": percentile(values, 0.99)}


async def _leave_early(system: System, rounds: int) -> tuple[list[Stream], list[Stream]]:
    """Clients that leave while their prompt is in prefill, and while their job waits for a slot."""
    prefilling: list[Stream] = []
    queued: list[Stream] = []
    for n in range(rounds):
        first = _long_streams(SLOTS, n * 100)
        rest = _long_streams(QUEUED, n * 100 + SLOTS)
        for stream in [*first, *rest]:
            await start(stream, system.ports[0])
            # In this order into the queue, so that it is known who waits.
            await asyncio.sleep(0.02)
        for stream in [*rest, *first]:
            stream.leave()
            await asyncio.sleep(random.uniform(0.01, 0.03))
        prefilling += first
        queued += rest
        await asyncio.sleep(0.3)
    return prefilling, queued


def _leave_before_first_token(options: Options) -> Result:
    with systems.tailrace(probed=True, sim_ttft_ms=PREFILL_SECONDS * 1000, sim_slots=SLOTS) as system:
        prefilling, queued = run(_leave_early(system, 3 if options.quick else 10))
        probe: Probe = system.probe()
    waits = [(probe.aborted[s.seed] - s.left_at) * 1000 for s in prefilling if s.seed in probe.aborted]
    return Result(
        {
            "prefill_abort_p50_ms": percentile(waits, 0.5),
            "prefill_abort_max_ms": max(waits, default=float("nan")),
            "prefill_never_aborted": len(prefilling) - len(waits),
            "queued_started": sum(stream.seed in probe.called for stream in queued),
            "queued": len(queued),
        }
    )


CANCEL = Scenario(
    "cancel",
    "From a cancel to the engine",
    f"{RUNNING} jobs run at 20 tokens/s each, others wait. `cancel`: from sending `POST /v1/jobs/{{id}}/cancel` to the "
    "engine's abort, so the way to the cancel key is in it. `leave`: from the client's close. By a probe around the "
    "engine.",
    {"tailrace": _cancel_running},
)
LEAVE_EARLY = Scenario(
    "leave_early",
    "Clients that leave before the first token",
    f"{SLOTS} slots, a prefill of {PREFILL_SECONDS:.0f} s. Clients leave while their job waits, then those in prefill.",
    {"tailrace": _leave_before_first_token},
    rounds=1,
)
