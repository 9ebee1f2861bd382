"""Cancel in every state and from everywhere; disconnects with both policies; pods that die."""

import asyncio
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from redis.asyncio import Redis

from common.connections import COMMAND_CONNECTIONS
from common.fleet import Fleet
from common.keys import Keys
from tests.conftest import MakeStack
from tests.support.client import Client, Heard, answer_to, chat, sse_events
from tests.support.processes import RedisServer, Stack
from tests.support.wait import until

ENDLESS = 1_000_000


class System:
    """One worker with two slots, two pods."""

    def __init__(self, make_stack: MakeStack, redis: Redis, **settings: Any) -> None:
        self.stack = make_stack(**{"sim_slots": 2, **settings})
        self.redis = redis
        self.fleet = Fleet(redis, Keys(self.stack.namespace))
        pod, self.worker = self.stack.both()
        self.pods = [pod, self.stack.api()]
        self.clients = [Client(pod.url) for pod in self.pods]

    async def engine_running(self, count: int) -> None:
        """Wait until the engine's own count of requests, from the worker's heartbeat, is `count`."""

        async def agreed() -> bool:
            return sum(worker.engine_running for worker in await self.fleet.workers()) == count

        await until(agreed, f"the engine holds {count} requests")

    async def ended(self, job_id: str) -> dict[str, Any]:
        async def terminal() -> dict[str, Any] | None:
            record = await self.clients[1].job(job_id)
            return record if record["status"] == "cancelled" else None

        record: dict[str, Any] = await until(terminal, "the job is cancelled")
        return record


@pytest.fixture
async def make_system(make_stack: MakeStack, redis: Redis) -> AsyncIterator[Callable[..., System]]:
    systems: list[System] = []

    def make(**settings: Any) -> System:
        systems.append(System(make_stack, redis, **settings))
        return systems[-1]

    yield make
    for system in systems:
        for client in system.clients:
            await client.aclose()


@pytest.fixture(scope="module")
async def system(
    redis_server: RedisServer, redis: Redis, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[System]:
    """Shared by the tests that leave it as they found it."""
    folder = tmp_path_factory.mktemp("cancel")
    system = System(lambda **settings: Stack(redis_server.url, folder, "cancel", **settings), redis)
    yield system
    for client in system.clients:
        await client.aclose()
    system.stack.stop()


async def test_a_running_job_stops_on_the_engine(system: System) -> None:
    """open-webui#14340, vercel/ai#6502: stop works from any pod, on a stream that was resumed."""
    here, there = system.clients
    job_id = await here.submit(chat("run", ENDLESS))
    heard = await here.read(job_id, stop_after=3)
    await there.read(job_id, heard, stop_after=3)
    reading = asyncio.create_task(here.read(job_id, heard))
    response = await there.post(f"/v1/jobs/{job_id}/cancel")
    assert response.status_code == 200
    await reading
    assert heard.ends == 1
    assert heard.end
    assert heard.end["status"] == "cancelled"
    assert heard.end["error"]["code"] == "job_cancelled"
    await system.engine_running(0)
    record = await system.ended(job_id)
    tokens = record["usage"]["completion_tokens"]
    assert heard.text == answer_to(chat("run"), tokens), "what was said before the cancel is kept"
    assert record["output"]["choices"][0]["message"]["content"] == heard.text


async def test_a_queued_job_never_reaches_the_engine(system: System) -> None:
    here, there = system.clients
    blockers = [await here.submit(chat(f"block {i}", ENDLESS)) for i in range(2)]
    for blocker in blockers:
        await here.read(blocker, stop_after=1)
    job_id = await here.submit(chat("queued", 5))
    assert (await here.job(job_id))["status"] == "queued"
    response = await there.post(f"/v1/jobs/{job_id}/cancel")
    assert response.json()["status"] == "cancelled"
    heard = await here.read(job_id)
    assert heard.started == []
    assert heard.end
    assert heard.end["status"] == "cancelled"
    for blocker in blockers:
        await here.post(f"/v1/jobs/{blocker}/cancel")
    await system.engine_running(0)
    assert f"{job_id}: attempt" not in system.worker.log


async def test_cancelling_twice_and_too_late(system: System) -> None:
    """vllm#57999: each state has its own answer."""
    here, there = system.clients
    job_id = await here.submit(chat("twice", ENDLESS))
    await here.read(job_id, stop_after=1)
    answers = await asyncio.gather(*(pod.post(f"/v1/jobs/{job_id}/cancel") for pod in (here, there, here)))
    assert [answer.status_code for answer in answers] == [200, 200, 200]
    await system.ended(job_id)
    assert (await here.post(f"/v1/jobs/{job_id}/cancel")).json()["status"] == "cancelled"
    done = await here.submit(chat("done", 3))
    await here.read(done)
    late = await there.post(f"/v1/jobs/{done}/cancel")
    assert late.status_code == 409
    assert late.json()["error"]["code"] == "job_already_ended"
    unknown = await there.post("/v1/jobs/job-unknown/cancel")
    assert unknown.status_code == 404


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [("GET", "", None, 200), ("POST", "/cancel", None, 409), ("PATCH", "", {"temperature": 0}, 409)],
)
async def test_who_has_read_the_end_finds_the_job_ended(
    system: System, redis: Redis, method: str, path: str, body: Any, status: int
) -> None:
    """The end event comes first, and the record may take a moment to follow."""
    client = system.clients[0]
    job_id = await client.submit(chat("ended", 3))
    await client.read(job_id)
    assert (await client.job(job_id))["status"] == "incomplete"
    record = Keys(system.stack.namespace).job(job_id)
    await redis.hset(record, "state", "running")  # type: ignore[misc]

    async def looks() -> int:
        return int((await redis.info("commandstats")).get("cmdstat_xrevrange", {}).get("calls", 0))

    before = await looks()

    async def looked_at_the_log() -> bool:
        return asking.done() or await looks() > before

    asking = asyncio.create_task(client.request(method, f"/v1/jobs/{job_id}{path}", json=body))
    await until(looked_at_the_log, "the pod has seen the end")
    await redis.hset(record, "state", "incomplete")  # type: ignore[misc]
    answer = await asking
    assert answer.status_code == status, answer.text
    assert answer.json().get("status", "incomplete") == "incomplete"


async def test_cancel_during_prefill(make_system: Callable[..., System]) -> None:
    """dynamo#13691: also before the first token."""
    system = make_system(sim_ttft_ms=3_600_000)
    here, there = system.clients
    job_id = await here.submit(chat("prefill", 5))
    await until(lambda: _is(here, job_id, "running"), "it runs")
    await there.post(f"/v1/jobs/{job_id}/cancel")
    await system.ended(job_id)
    await system.engine_running(0)


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_takes_its_job_along(system: System, stream: bool) -> None:
    """vllm#54947, production-stack#634: streaming or not, on_disconnect=cancel is the default of a chat."""
    here, _ = system.clients
    job_id = await _start_and_leave(here, chat("leaver", ENDLESS, stream=stream), system)
    record = await system.ended(job_id)
    assert record["error"]["message"].count("client_disconnected")
    await system.engine_running(0)


async def test_a_job_that_shall_continue_does_not_notice(system: System) -> None:
    """litellm#36275: the disconnect handler kills background jobs."""
    here, there = system.clients
    body = chat("stayer", 300, stream=True, tailrace={"on_disconnect": "continue"})
    job_id = await _start_and_leave(here, body, system)
    heard = await there.read(job_id)
    assert heard.text == answer_to(body)


async def test_a_reader_that_comes_back_within_the_grace_saves_the_job(system: System) -> None:
    here, there = system.clients
    body = chat("grace", 1500, stream=True, tailrace={"grace_seconds": 30})
    job_id = await _start_and_leave(here, body, system)
    assert (await there.read(job_id)).text == answer_to(body)


async def test_another_reader_on_another_pod_keeps_the_job_alive(system: System) -> None:
    here, there = system.clients
    body = chat("two readers", 1500, stream=True)
    heard = Heard()
    second: asyncio.Task[Heard] | None = None
    async with here.stream("POST", "/v1/chat/completions", json=body) as response:
        job_id = response.headers["x-job-id"]
        async for _ in sse_events(response):
            if second is None:
                second = asyncio.create_task(there.read(job_id, heard))
            if heard.text:
                break
    assert second is not None
    assert (await second).text == answer_to(body)


async def test_jobs_of_a_killed_pod_are_aborted_by_the_worker(make_system: Callable[..., System]) -> None:
    """Nobody sends a cancel for them: the worker sees that no reader is left."""
    system = make_system(presence_ttl_seconds=2)
    here, _ = system.clients
    leaving = [asyncio.create_task(here.post("/v1/chat/completions", json=chat(f"k{i}", ENDLESS))) for i in range(2)]
    await system.engine_running(2)
    kept = await system.clients[1].submit(chat("kept", 20))
    system.pods[0].kill()
    for task in leaving:
        with pytest.raises(httpx.HTTPError):
            await task
    assert (await system.clients[1].read(kept)).text == answer_to(chat("kept", 20))
    await system.engine_running(0)
    await until(lambda: system.worker.log.count("abandoned") == 2, "the log says why")


async def test_a_waiting_job_of_a_killed_pod_never_starts(make_system: Callable[..., System]) -> None:
    system = make_system(presence_ttl_seconds=1)
    here, there = system.clients
    blockers = [await there.submit(chat(f"block {i}", ENDLESS)) for i in range(2)]
    await system.engine_running(2)
    waiting = asyncio.create_task(here.post("/v1/chat/completions", json=chat("waits", 5)))
    await until(lambda: _accepted(system), "it is accepted")
    [job_id] = _accepted(system)
    keys = Keys(system.stack.namespace)

    async def attached() -> bool:
        return bool(await system.redis.exists(keys.attached(job_id)))

    async def lapsed() -> bool:
        return not await attached()

    await until(attached, "its reader is known")
    system.pods[0].kill()
    await asyncio.gather(waiting, return_exceptions=True)
    await until(lapsed, "the dead pod's presence has lapsed")
    for blocker in blockers:
        await there.post(f"/v1/jobs/{blocker}/cancel")
    await system.ended(job_id)
    heard = await there.read(job_id)
    assert heard.started == []
    assert heard.end
    assert "abandoned" in heard.end["error"]["message"]


async def test_deleting_cancels_and_forgets(system: System) -> None:
    """LibreChat#13396: what was replaced or deleted must not go on running."""
    here, there = system.clients
    job_id = await here.submit(chat("gone", ENDLESS))
    await here.read(job_id, stop_after=1)
    response = await there.delete(f"/v1/jobs/{job_id}")
    assert response.json() == {"id": job_id, "object": "job.deleted", "deleted": True}
    assert (await here.get(f"/v1/jobs/{job_id}")).status_code == 404
    await system.engine_running(0)
    done = await here.submit(chat("done", 3))
    await here.read(done)
    await there.delete(f"/v1/jobs/{done}")
    assert (await here.get(f"/v1/jobs/{done}/events")).status_code == 404


async def test_a_storm_of_disconnects_leaves_nothing_behind(make_system: Callable[..., System]) -> None:
    """sglang#36876, sse-starlette#152, litellm#30244: 2,000 leave; no zombie in the engine, nothing in the pod."""
    system = make_system(sim_slots=64)
    pod, client = system.pods[0], system.clients[0]

    async def leave(i: int) -> None:
        body = chat(f"storm {i}", ENDLESS, stream=True)
        async with client.stream("POST", "/v1/chat/completions", json=body) as response:
            async for _ in sse_events(response):
                break

    async def storm() -> None:
        for _ in range(5):
            await asyncio.gather(*(leave(i) for i in range(40)))

    before, tasks = _descriptors(pod.pid), await client.metric("tailrace_tasks")
    for _ in range(10):
        await storm()
    await system.engine_running(0)

    async def closed() -> bool:
        # The pod's two connection pools fill up and stay, and the hub's shard is one more task.
        kept = before + 2 * COMMAND_CONNECTIONS + 16
        open_streams, now = await client.metric("tailrace_open_streams"), await client.metric("tailrace_tasks")
        return open_streams == 0 and now <= tasks + 2 and _descriptors(pod.pid) <= kept

    await until(closed, "the pod's streams and descriptors are back")


async def test_a_cancel_survives_cut_connections(system: System, redis: Redis) -> None:
    """aegra#529: the cancel is a key, not a message, so a connection cut at that very moment changes nothing."""
    here, there = system.clients
    ids = [await here.submit(chat(f"cut {i}", ENDLESS)) for i in range(2)]
    for job_id in ids:
        await here.read(job_id, stop_after=1)
    answers = await asyncio.gather(
        *(there.post(f"/v1/jobs/{job_id}/cancel") for job_id in ids),
        redis.client_kill_filter(_type="normal", skipme=True),
    )
    for job_id, answer in zip(ids, answers, strict=False):
        if answer.status_code != 200:  # the pod could not tell; then the client asks again, as it would
            assert (await there.post(f"/v1/jobs/{job_id}/cancel")).status_code == 200
        await system.ended(job_id)
    await system.engine_running(0)


async def test_a_stopped_worker_hands_its_jobs_over(make_stack: MakeStack) -> None:
    """SIGTERM: what does not end in time goes on elsewhere, without a gap and without a restart."""
    stack = make_stack(sim_slots=4, sim_itl_ms=10, drain_seconds=1)
    api, first = stack.both()
    async with Client(api.url) as client:
        body = chat("handover", 400)
        job_id = await client.submit(body)
        reading = asyncio.create_task(client.read(job_id))
        await client.read(job_id, stop_after=3)
        first.signal(signal.SIGTERM)
        second = stack.worker()
        heard = await reading
        assert heard.text == answer_to(body)
        assert [event["attempt"] for event in heard.started] == [1, 2]
        assert first.wait() == 0
        assert "handed over" in first.log
        assert second.alive


async def _start_and_leave(client: Client, body: dict[str, Any], system: System) -> str:
    """Start a chat, hang up once it runs, return its job id."""
    if body["stream"]:
        async with client.stream("POST", "/v1/chat/completions", json=body) as response:
            async for _ in sse_events(response):
                return str(response.headers["x-job-id"])
    before = len(_accepted(system))
    posting = asyncio.create_task(client.post("/v1/chat/completions", json=body))
    await until(lambda: len(_accepted(system)) > before, "it is accepted")
    job_id = _accepted(system)[-1]
    await until(lambda: _is(client, job_id, "running"), "it runs")
    posting.cancel()
    await asyncio.gather(posting, return_exceptions=True)
    return job_id


def _accepted(system: System) -> list[str]:
    """Ids of the first pod's jobs."""
    lines = [line for line in system.pods[0].log.splitlines() if ": accepted" in line]
    return [line.split("job ")[1].split(":")[0] for line in lines]


async def _is(client: Client, job_id: str, status: str) -> bool:
    return bool((await client.job(job_id))["status"] == status)


def _descriptors(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))
