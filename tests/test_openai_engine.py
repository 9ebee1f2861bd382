"""The openai engine, with another Tailrace (on the simulated engine) as its upstream."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from redis.asyncio import Redis

from common.fleet import Fleet
from common.keys import Keys
from tests.conftest import MakeStack
from tests.support.client import Client, answer_to, chat, chat_stream
from tests.support.processes import Process, RedisServer, Stack, free_port, tailrace
from tests.support.wait import until
from workers.engines.openai import _events, _lines

ENDLESS = 1_000_000


class Chain:
    """Client -> pod -> worker with the openai engine -> upstream pod -> simulated worker."""

    def __init__(self, redis_url: str, folder: Path) -> None:
        self.upstream = Stack(redis_url, folder / "upstream", "chain-up")
        self.upstream.both()
        url = f"{self.upstream.apis[0].url}/v1"
        self.front = Stack(redis_url, folder / "front", "chain", engine="openai", upstream_url=url)
        self.front.both()


@pytest.fixture(scope="module")
async def chain(redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Chain]:
    chain = Chain(redis_server.url, tmp_path_factory.mktemp("chain"))
    yield chain
    chain.front.stop()
    chain.upstream.stop()


@pytest.fixture
async def front(chain: Chain) -> AsyncIterator[Client]:
    async with Client(chain.front.apis[0].url) as client:
        yield client


async def test_answers_pass_through_unchanged(front: Client) -> None:
    body = chat("through", 40)
    assert await chat_stream(front, body) == answer_to(body)
    whole = (await front.post("/v1/chat/completions", json=chat("both", 10, n=2))).json()
    assert [choice["message"]["content"] for choice in whole["choices"]] == [
        answer_to(chat("both", 10, seed=seed)) for seed in (0, 1)
    ]
    assert whole["usage"]["completion_tokens"] == 20
    text = {"model": "simulated", "prompt": "text", "max_tokens": 7}
    completion = (await front.post("/v1/completions", json=text)).json()
    assert completion["choices"][0]["text"] == answer_to(text)
    models = (await front.get("/v1/models")).json()["data"]
    assert [(model["id"], model["engine"]) for model in models] == [("simulated", "openai")]


async def test_a_cancel_reaches_the_upstream(front: Client, redis: Redis) -> None:
    job_id = await front.submit(chat("cancel", ENDLESS))
    await front.read(job_id, stop_after=2)
    await front.post(f"/v1/jobs/{job_id}/cancel")

    async def idle() -> bool:
        workers = await Fleet(redis, Keys("chain-up")).workers()
        return all(worker.engine_running == 0 for worker in workers)

    await until(idle, "the upstream's engine holds no request")


async def test_the_upstreams_refusal_is_the_clients(front: Client, chain: Chain) -> None:
    """The front lets it pass; the upstream pod allows smaller bodies only."""
    strict = chain.upstream.api(max_body_bytes=2048)
    picky = Stack(chain.front.redis_url, chain.front.folder, "picky", engine="openai", upstream_url=f"{strict.url}/v1")
    picky.worker()
    async with Client(picky.api().url) as client:
        response = await client.post("/v1/chat/completions", json=chat("x" * 4096, 5))
    picky.stop()
    assert response.status_code == 413
    assert response.json()["error"]["code"] == "body_too_large"


@pytest.mark.slow
async def test_slots_are_free_after_a_thousand_failed_jobs(make_stack: MakeStack, chain: Chain) -> None:
    """llm-d-async#311: a slot leaks on each failure until the worker is wedged."""
    strict = chain.upstream.api(max_body_bytes=1024)
    stack = make_stack(engine="openai", upstream_url=f"{strict.url}/v1", upstream_slots=8)
    api, _ = stack.both()
    async with Client(api.url) as client:
        turns = asyncio.Semaphore(32)

        async def fail(i: int) -> None:
            async with turns:
                response = await client.post("/v1/chat/completions", json=chat(f"{i} " + "x" * 2048, 5))
                assert response.status_code == 413

        await asyncio.gather(*(fail(i) for i in range(1000)))
        await until(lambda: _nothing_runs(client), "the slots are free")
        body = chat("well", 20)
        assert await asyncio.gather(*(chat_stream(client, body) for _ in range(8))) == [answer_to(body)] * 8


async def _nothing_runs(client: Client) -> bool:
    return await client.metric("tailrace_running_jobs") == 0


async def test_jobs_wait_while_the_upstream_is_away(make_stack: MakeStack) -> None:
    upstream = make_stack()
    api, _ = upstream.both()
    front = make_stack(engine="openai", upstream_url=f"{api.url}/v1")
    front_api, front_worker = front.both()
    api.kill()
    async with Client(front_api.url) as client:
        body = chat("patient", 5)
        job_id = await client.submit(body)
        await until(lambda: "upstream not ready" in front_worker.log, "it tries")
        upstream.api(port=int(api.url.rsplit(":", 1)[1]))
        assert (await client.read(job_id)).text == answer_to(body)


def test_an_upstream_that_does_not_answer_stops_the_worker(make_stack: MakeStack, tmp_path: Path) -> None:
    stack = make_stack(engine="openai", upstream_url=f"http://127.0.0.1:{free_port()}/v1")
    worker = Process("lonely", tailrace("worker"), tmp_path, stack._env({}))
    assert worker.wait() == 1
    assert "the engine did not start: http://127.0.0.1" in worker.log


async def test_lines_end_where_sse_ends_them() -> None:
    async def chunks() -> AsyncIterator[bytes]:
        text = 'data: {"a": "\u2028"}\r\n\ndata: x\n'.encode()
        for i in range(len(text)):
            yield text[i : i + 1]

    assert [line async for line in _lines(chunks())] == ['data: {"a": "\u2028"}', "", "data: x", ""]


def test_half_a_surrogate_pair_becomes_a_replacement_character() -> None:
    (event,) = _events('data: {"choices": [{"index": 0, "delta": {"content": "a\\ud83d"}}]}')
    assert event["content"] == "a\ufffd"
    (event,) = _events('data: {"choices": [{"index": 0, "delta": {"content": "\\ud83d\\ude00"}}]}')
    assert event["content"] == "\U0001f600"
