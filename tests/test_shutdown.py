"""SIGTERM to a pod: not ready, new work refused, open streams get their time, the rest is sent away in order."""

import asyncio
import signal

import httpx

from tests.conftest import MakeStack
from tests.support.client import Client, answer_to, chat, sse_events
from tests.support.wait import until

ENDLESS = 1_000_000


async def test_short_streams_finish_long_ones_are_sent_away(make_stack: MakeStack) -> None:
    """sse-starlette#167, datasette#2890: neither cut at once nor waited for without end."""
    stack = make_stack(sim_itl_ms=10)
    api = stack.api(drain_seconds=4)
    other, _ = stack.both()
    async with Client(api.url) as here, Client(other.url) as there:
        short = asyncio.create_task(here.post("/v1/chat/completions", json=chat("short", 60)))
        long_body = chat("long", 800)
        job_id = await here.submit(long_body)
        text, last_id, lines = "", "", []
        refusing = False
        async with here.stream("GET", f"/v1/jobs/{job_id}/events") as response:
            async for line in response.aiter_lines():
                lines.append(line)
                if len(lines) == 12:
                    api.signal(signal.SIGTERM)
                if len(lines) > 40 and not refusing:
                    refusing = True
                    assert (await here.get("/health/ready")).status_code == 503
                    refused = await here.post("/v1/jobs", json=chat("new", 1))
                    assert refused.status_code == 503
                    assert refused.json()["error"]["code"] == "shutting_down"
        assert refusing
        assert (await short).json()["choices"][0]["message"]["content"] == answer_to(chat("short", 60))
        assert any(line.startswith("retry:") for line in lines[-3:])
        for line in lines:
            if line.startswith("id: "):
                last_id = line[4:]
        assert api.wait() == 0
        rest = await there.read(job_id, after=last_id)
        events = "\n".join(lines).split("\n\n")
        for event in events:
            if "event: delta" in event:
                text += httpx.Response(200, content=event.split("data: ")[1]).json().get("content", "")
        assert text + rest.text == answer_to(long_body)


async def test_a_chat_that_was_sent_away_is_not_cancelled(make_stack: MakeStack) -> None:
    """It was the pod that left, not the client; the client comes back elsewhere within the presence time."""
    stack = make_stack(sim_itl_ms=10, presence_ttl_seconds=10)
    api = stack.api(drain_seconds=0)
    other, _ = stack.both()
    body = chat("moved", 300, stream=True)
    async with Client(api.url) as here, Client(other.url) as there:
        async with here.stream("POST", "/v1/chat/completions", json=body) as response:
            job_id = response.headers["x-job-id"]
            told = sse_events(response)
            await anext(told)
            api.signal(signal.SIGTERM)  # once: a second one would end it at once
            async for _ in told:
                pass
        heard = await there.read(job_id)
        assert heard.text == answer_to(body)


async def test_a_stream_that_has_not_begun_is_refused_so_that_the_client_tries_again(make_stack: MakeStack) -> None:
    """A stream that ends without a token would look like an empty answer to OpenAI's SDKs."""
    stack = make_stack(sim_ttft_ms=60_000, first_event_wait_seconds=60)
    api = stack.api(drain_seconds=0)
    stack.worker()
    async with Client(api.url) as client:
        asking = asyncio.create_task(client.post("/v1/chat/completions", json=chat("early", stream=True)))

        async def started() -> bool:
            return await client.metric("tailrace_events_sent_total") > 0

        await until(started, "the pod has heard that a worker has it")
        api.signal(signal.SIGTERM)
        refused = await asking
    assert refused.status_code == 503
    assert refused.json()["error"]["code"] == "shutting_down"


async def test_an_idle_pod_and_an_idle_worker_stop_at_once(make_stack: MakeStack) -> None:
    stack = make_stack(drain_seconds=100)
    api, worker = stack.both()
    async with Client(api.url) as client:
        assert (await client.get("/v1/models")).status_code == 200
    assert api.stop() == 0
    assert worker.stop() == 0


async def test_a_second_signal_ends_a_pod_that_drains(make_stack: MakeStack) -> None:
    stack = make_stack()
    api = stack.api(drain_seconds=1000)
    stack.worker()
    async with Client(api.url) as client:
        job_id = await client.submit(chat("holds", ENDLESS))
        reading = asyncio.create_task(client.read(job_id))
        await client.read(job_id, stop_after=1)
        api.signal(signal.SIGTERM)
        await until(lambda: "SIGTERM" in api.log, "it drains")
        api.signal(signal.SIGTERM)
        await until(lambda: not api.alive, "it ended")
        await asyncio.gather(reading, return_exceptions=True)
