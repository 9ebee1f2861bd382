"""Many streams through one pod and one worker, every token checked; and memory that does not grow with jobs."""

import asyncio
from pathlib import Path

import httpx
import pytest

from tests.conftest import MakeStack
from tests.support.client import Client, answer_to, chat, chat_stream
from tests.support.wait import until


@pytest.mark.slow
async def test_three_hundred_streams_lose_double_and_reorder_nothing(make_stack: MakeStack) -> None:
    stack = make_stack(sim_slots=300, sim_itl_ms=20, sim_ttft_ms=20)
    api, _ = stack.both()
    bodies = [chat(f"stream {i}", 128, seed=i) for i in range(300)]
    limits = httpx.Limits(max_connections=300)
    async with Client(api.url, limits=limits) as client:
        texts = await asyncio.gather(*(chat_stream(client, body) for body in bodies))
        for body, text in zip(bodies, texts, strict=True):
            assert text == answer_to(body)
        await until(lambda: _none_open(client), "the pod has closed them, too")


async def _none_open(client: Client) -> bool:
    return await client.metric("tailrace_open_streams") == 0


@pytest.mark.slow
async def test_memory_is_flat_over_thousands_of_jobs(make_stack: MakeStack) -> None:
    """vllm#48275: finished responses are kept in memory until the process dies."""
    stack = make_stack(sim_slots=64, sim_itl_ms=0.5, sim_ttft_ms=0)
    api, worker = stack.both()
    async with Client(api.url, limits=httpx.Limits(max_connections=32)) as client:

        async def run(count: int) -> None:
            turns = asyncio.Semaphore(32)

            async def one(i: int) -> None:
                async with turns:
                    assert (await client.post("/v1/chat/completions", json=chat(f"m{i}", 4))).status_code == 200

            await asyncio.gather(*(one(i) for i in range(count)))

        await run(1000)
        before = _rss_mb(api.pid), _rss_mb(worker.pid)
        await run(2000)
        after = _rss_mb(api.pid), _rss_mb(worker.pid)
        for name, old, new in zip(("api", "worker"), before, after, strict=True):
            assert new < old + 12, f"{name} grew from {old:.0f} to {new:.0f} MB"


def _rss_mb(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * 4096 / 1e6
