"""Memory of one API process: thousands of attached readers, and readers that do not read."""

import asyncio
import resource
import socket
import time

from bench import systems
from bench.client import FROZEN_RECEIVE_BYTES, Load, Stream, start
from bench.measure import percentile, rss_bytes
from bench.scenario import Options, Result, Scenario, Variant
from bench.scenarios.load import chat_streams, offered
from bench.systems import System, run
from bench.wire import chat_body, post
from tests.support.wait import until

ATTACHED, ATTACHED_ITL_MS, WINDOW_SECONDS = 5000, 500, 20.0
STARVED_SECONDS = 5.0
"""Ten times the time between two tokens."""
LONG = 100_000
FILES_PER_STREAM = 2.2
"""In the client and in the pod, which share no table of open files, one each; and some for everything else."""

READERS, FROZEN, FROZEN_ITL_MS, FREEZE_AT = 200, 50, 50, 20
SETTLE_SECONDS = 15.0
"""After it, buffers are full and rings are warm."""


def _attachable(wanted: int) -> int:
    """`wanted`, or as many as the limit of open files allows."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return min(wanted, int(hard / FILES_PER_STREAM))


async def _attach(system: System, streams: list[Stream], window: float) -> tuple[float, list[int]]:
    """All streams attached, in hundreds; then about `window` seconds of reading: how many, and tokens per stream."""
    for first in range(0, len(streams), 100):
        await asyncio.gather(*(start(stream, system.ports[0]) for stream in streams[first : first + 100]))
        await asyncio.sleep(0.1)
    await until(lambda: _all_read(streams), "every stream has its first token", 120)
    before, begun = [stream.received for stream in streams], time.monotonic()
    for stream in streams:
        stream.longest_silence = 0.0
    await asyncio.sleep(window)
    return time.monotonic() - begun, [s.received - was for s, was in zip(streams, before, strict=True)]


async def _all_read(streams: list[Stream]) -> bool:
    return all(stream.first_at for stream in streams)


def _attached(options: Options) -> Result:
    count = _attachable(1000 if options.quick else ATTACHED)
    with systems.tailrace(sim_ttft_ms=0, sim_itl_ms=ATTACHED_ITL_MS, sim_slots=count) as system:
        offered(system, 10, 5)
        idle = rss_bytes(system.pids["api"][0])

        async def read() -> tuple[float, list[int], list[Stream], int]:
            streams = chat_streams(count, LONG)
            seconds, tokens = await _attach(system, streams, WINDOW_SECONDS / 2 if options.quick else WINDOW_SECONDS)
            rss = rss_bytes(system.pids["api"][0])
            for stream in streams:
                stream.leave()
            return seconds, tokens, streams, rss

        seconds, tokens, streams, rss = run(read())
    load = Load(streams, seconds)
    silences = [stream.longest_silence for stream in streams]
    figures = {
        "streams": count,
        "rss_per_stream_kb": (rss - idle) / count / 1024,
        "tokens_per_s": sum(tokens) / seconds,
        "fewest_tokens": min(tokens),
        "most_tokens": max(tokens),
        "longest_silence_ms": max(silences) * 1000,
        "starved": sum(silence > STARVED_SECONDS for silence in silences),
        "added_p50_ms": percentile(load.added, 0.5) * 1000,
        "added_p99_ms": percentile(load.added, 0.99) * 1000,
    }
    return Result(figures, load.wrong, load.failures)


async def _frozen_reader(seed: int, tokens: int, port: int) -> Stream:
    """Reads FREEZE_AT tokens, then nothing, and leaves its connection open."""
    stream = Stream(post("/v1/chat/completions", chat_body(seed, tokens)), seed, tokens, freeze_at=FREEZE_AT)
    link = socket.socket()
    link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, FROZEN_RECEIVE_BYTES)
    link.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(link, ("127.0.0.1", port))
    await loop.create_connection(lambda: stream, sock=link)
    return stream


async def _read_beside_frozen(system: System, frozen: int, seconds: float) -> tuple[Load, list[float]]:
    """READERS for `seconds`, of which `frozen` stop reading: the others' load, and the pod's RSS in MB by second."""
    tokens = int(seconds * 1000 / FROZEN_ITL_MS)
    begun = time.monotonic()
    live = chat_streams(READERS - frozen, tokens)
    asleep = [await _frozen_reader(READERS + k, tokens, system.ports[0]) for k in range(frozen)]
    await asyncio.gather(*(start(stream, system.ports[0]) for stream in live))
    rss = []
    while not all(stream.done.done() for stream in live):
        rss.append(rss_bytes(system.pids["api"][0]) / 2**20)
        await asyncio.sleep(1)
    load = Load(live, time.monotonic() - begun)
    load.failures += [stream.failure for stream in asleep if stream.failure]
    for stream in asleep:
        stream.leave()
    return load, rss


def _beside(frozen: int) -> Variant:
    def measured(options: Options) -> Result:
        # Nobody is to be cut for not reading: this is about what it costs to keep them.
        with systems.tailrace(sim_itl_ms=FROZEN_ITL_MS, sim_slots=READERS, send_timeout_seconds=3600) as system:
            offered(system, READERS, 5)
            load, rss = run(_read_beside_frozen(system, frozen, 24.0 if options.quick else 120.0))
        settled = rss[int(SETTLE_SECONDS)]
        figures = {
            "rss_settled_mb": settled,
            "rss_end_mb": rss[-1],
            "growth_pct": 100 * (rss[-1] / settled - 1),
            "added_p50_ms": percentile(load.added, 0.5) * 1000,
            "added_p99_ms": percentile(load.added, 0.99) * 1000,
        }
        return Result(figures, load.wrong, load.failures, {"rss_mb": rss})

    return measured


ATTACHED_5000 = Scenario(
    "attached_5000",
    "5,000 attached streams in one API process",
    "5,000 chat streams at 2 tokens/s each. RSS of the API process against the same process with nobody attached, "
    f"after {WINDOW_SECONDS:.0f} s in which all are attached. Starved: a reader that got nothing for "
    f"{STARVED_SECONDS:.0f} s. A quick run has 1,000 streams.",
    {"tailrace": _attached},
    rounds=1,
)
FROZEN_READERS = Scenario(
    "frozen",
    "Readers that stop reading",
    f"{READERS} readers at 20 tokens/s for 120 s, of which {FROZEN} read {FREEZE_AT} tokens and then nothing, with a "
    f"receive buffer of {FROZEN_RECEIVE_BYTES // 1024} KB and no send timeout; latencies are of the others. "
    f"`all_read`: the same number, and all read. Settled: after {SETTLE_SECONDS:.0f} s.",
    {"frozen": _beside(FROZEN), "all_read": _beside(0)},
    rounds=1,
    quick_variants=("frozen",),
)
