"""What ended jobs hold in Redis: first their streams and results, and when the streams have expired, the results."""

from redis import Redis

from bench import systems
from bench.client import Load, read_all
from bench.scenario import Options, Result, Scenario
from bench.scenarios.load import chat_streams
from bench.systems import System, run

JOBS, TOKENS, SLOTS = 500, 256, 100


def _measured(options: Options) -> Result:
    count = JOBS // 5 if options.quick else JOBS
    with systems.tailrace(sim_ttft_ms=0, sim_itl_ms=5, sim_slots=SLOTS) as system:
        assert system.stack
        with Redis.from_url(system.stack.redis_url) as redis:
            before = _used_mb(redis)
            load = run(_read(system, count))
            whole = _used_mb(redis) - before
            for key in redis.scan_iter(f"{system.stack.namespace}:stream:*", count=1000):
                redis.delete(key)
            results = _used_mb(redis) - before
        return Result(
            {"redis_per_1000_jobs_mb": whole * 1000 / count, "results_per_1000_jobs_mb": results * 1000 / count},
            wrong=load.wrong,
            failures=load.failures,
        )


async def _read(system: System, count: int) -> Load:
    return await read_all(chat_streams(count, TOKENS), system.ports)


def _used_mb(redis: Redis) -> float:
    return float(redis.info("memory")["used_memory_dataset"]) / 1e6  # type: ignore[index]


MEMORY = Scenario(
    "memory",
    "What ended jobs hold in Redis",
    "500 chats of 256 tokens, about one stream entry per token; with the stamp a token's text has 26 characters. "
    "`redis`: records, results and streams, which live for `STREAM_TTL_SECONDS` after the end. `results`: when the "
    "streams have expired, until `RESULT_TTL_SECONDS`.",
    {"tailrace": _measured},
    rounds=1,
)
