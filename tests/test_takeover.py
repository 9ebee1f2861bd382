"""Death of workers, and the attempts that follow: nothing lost, nothing twice, and the reader does not notice."""

import asyncio
import signal
from typing import Any

from redis.asyncio import Redis

from common.fleet import Fleet
from common.keys import Keys
from tests.conftest import MakeStack
from tests.support.client import Client, Heard, answer_to, chat
from tests.support.wait import until

ENDLESS = 1_000_000


async def test_a_killed_workers_answers_go_on_elsewhere(make_stack: MakeStack) -> None:
    """deer-flow#3932, llm-d-async#404: SIGKILL in mid-answer and before the start; one connection, no gap."""
    stack = make_stack(sim_itl_ms=10, sim_slots=8, lease_seconds=2)
    api, first = stack.both()
    async with Client(api.url) as client:
        bodies = [chat(f"kill {i}", 300) for i in range(8)] + [chat(f"waits {i}", 20) for i in range(4)]
        ids = [await client.submit(body) for body in bodies]
        heard = [Heard() for _ in ids]
        reading = [asyncio.create_task(client.read(id, one)) for id, one in zip(ids, heard, strict=True)]
        await until(lambda: all(len(one.ids) > 10 for one in heard[:8]), "the slots are full and flow")
        first.kill()
        stack.worker()
        await asyncio.gather(*reading)
        for body, one in zip(bodies, heard, strict=True):
            assert one.text == answer_to(body)
            assert one.ends == 1
        assert [len(one.started) for one in heard] == [2] * 8 + [1] * 4
        for job_id, body in zip(ids, bodies, strict=True):
            record = await client.job(job_id)
            assert record["output"]["choices"][0]["message"]["content"] == answer_to(body)
            assert record["usage"]["completion_tokens"] == body["max_tokens"]


async def test_the_first_token_is_that_of_the_first_attempt(make_stack: MakeStack) -> None:
    stack = make_stack(sim_itl_ms=10, lease_seconds=2)
    api, first = stack.both()
    async with Client(api.url) as client:
        job_id = await client.submit(chat("first token", ENDLESS))
        heard = Heard()
        reading = asyncio.create_task(client.read(job_id, heard))
        await until(lambda: _has(client, job_id, "first_token_at"), "the record knows the first token")
        before = (await client.job(job_id))["first_token_at"]
        first.kill()
        stack.worker()
        await until(lambda: len(heard.started) == 2, "another worker has it")
        await _enough(client, job_id)
        await reading
        record = await client.job(job_id)
        assert record["attempt"] == 2
        assert record["first_token_at"] == before


async def test_readers_are_told_that_a_job_waits_again(make_stack: MakeStack) -> None:
    """twenty#22482: keepalives must not hide that the worker is dead."""
    stack = make_stack(sim_itl_ms=10, lease_seconds=2)
    api, first = stack.both()
    async with Client(api.url) as client:
        body = chat("waits again", ENDLESS)
        heard = Heard()
        job_id = await client.submit(body)
        reading = asyncio.create_task(client.read(job_id, heard))
        await until(lambda: len(heard.ids) > 5, "it flows")
        first.kill()
        await until(lambda: heard.statuses, "the reader is told")
        assert heard.statuses == [{"status": "queued", "reason": "worker_lost"}]
        stack.worker()
        await until(lambda: len(heard.started) == 2, "another worker has it")
        await _enough(client, job_id)
        await reading
        assert heard.text == answer_to(body, heard.text.count(" "))


async def test_readers_are_told_that_a_job_was_handed_over(make_stack: MakeStack) -> None:
    """A worker that is stopped in order is no loss, and nobody should look for a crash."""
    stack = make_stack(sim_itl_ms=10, drain_seconds=1)
    api, first = stack.api(), stack.worker()
    async with Client(api.url) as client:
        body = chat("handed over", 400)
        heard = Heard()
        reading = asyncio.create_task(client.read(await client.submit(body), heard))
        await until(lambda: len(heard.ids) > 5, "it flows")
        first.signal(signal.SIGTERM)
        await until(lambda: heard.statuses, "the reader is told")
        assert heard.statuses == [{"status": "queued", "reason": "handed_over"}]
        second = stack.worker()
        await until(lambda: len(heard.started) == 2, "another worker has it")
        second.kill()
        await until(lambda: len(heard.statuses) == 2, "the reader is told again")
        assert heard.statuses[1] == {"status": "queued", "reason": "worker_lost"}
        stack.worker()
        await reading
        assert heard.text == answer_to(body)


async def test_a_stalled_worker_writes_nothing_when_it_wakes_up(make_stack: MakeStack, redis: Redis) -> None:
    """SIGSTOP past the lease, takeover, SIGCONT: fenced by Redis itself, and its engine is told to stop."""
    stack = make_stack(sim_itl_ms=5, lease_seconds=1)
    api, zombie = stack.both()
    async with Client(api.url) as client:
        body = chat("zombie", ENDLESS)
        job_id = await client.submit(body)
        heard = Heard()
        reading = asyncio.create_task(client.read(job_id, heard))
        await until(lambda: len(heard.ids) > 5, "it flows")
        zombie.signal(signal.SIGSTOP)
        stack.worker()
        await until(lambda: len(heard.started) == 2, "another worker has it")
        zombie.signal(signal.SIGCONT)
        await until(lambda: f"job {job_id}: attempt 1 stops" in zombie.log, "the zombie has noticed")
        await _enough(client, job_id)
        await reading
        assert heard.text == answer_to(body, heard.text.count(" "))
        assert heard.ends == 1

        async def idle() -> bool:
            workers = await Fleet(redis, Keys(stack.namespace)).workers()
            return len(workers) == 2 and all(worker.engine_running == 0 for worker in workers)

        await until(idle, "both engines are idle")
        assert (await client.read(job_id)).text == heard.text


async def test_a_worker_that_claims_its_own_lost_job_keeps_both_apart(make_stack: MakeStack, redis: Redis) -> None:
    """The lease lapses while the worker lives, and the same worker claims the next attempt."""
    stack = make_stack(sim_itl_ms=5, lease_seconds=2)
    api, worker = stack.both()
    async with Client(api.url) as client:
        body = chat("again", ENDLESS)
        job_id = await client.submit(body)
        heard = Heard()
        reading = asyncio.create_task(client.read(job_id, heard))
        await until(lambda: len(heard.ids) > 5, "it flows")
        worker.signal(signal.SIGSTOP)
        await until(lambda: _is(client, job_id, "queued"), "its lease has lapsed")
        worker.signal(signal.SIGCONT)
        await until(lambda: len(heard.started) == 2, "it goes on")
        await until(lambda: f"job {job_id}: attempt 1 stops" in worker.log, "the first attempt has ended")
        await _enough(client, job_id)
        await reading
        assert heard.text == answer_to(body, heard.text.count(" "))
        assert [event["attempt"] for event in heard.started] == [1, 2]
        again = await client.submit(chat("cancel me", ENDLESS))
        await client.read(again, stop_after=2)
        await client.post(f"/v1/jobs/{again}/cancel")
        await until(lambda: _is(client, again, "cancelled"), "cancels still work")


async def test_a_job_that_kills_every_worker_is_given_up(make_stack: MakeStack) -> None:
    """llm-d-async#391: a poison job ends failed, after its budget and with a backoff."""
    stack = make_stack(sim_itl_ms=10, lease_seconds=2, max_attempts=2, retry_backoff_seconds=0.1)
    api = stack.api()
    async with Client(api.url) as client:
        heard = Heard()
        reading = None
        for attempt in (1, 2):
            worker = stack.worker()
            if reading is None:
                job_id = await client.submit(chat("poison", ENDLESS))
                reading = asyncio.create_task(client.read(job_id, heard))
            await until(lambda: len(heard.started) == attempt, f"attempt {attempt} runs")  # noqa: B023
            worker.kill()
        assert reading is not None
        await reading
        assert heard.end
        assert heard.end["status"] == "failed"
        assert heard.end["error"]["code"] == "worker_lost"
        record = await client.job(job_id)
        assert record["status"] == "failed"
        assert record["output"]["choices"][0]["message"]["content"] == heard.text, "what was said is kept"


async def test_a_handover_loses_nothing_past_half_the_budget(make_stack: MakeStack) -> None:
    """The writer holds tokens back then; a shutdown must not wait for more of them, nor lose the hand-over."""
    stack = make_stack(sim_itl_ms=3, stream_maxlen=64, drain_seconds=1)
    api, first = stack.both()
    async with Client(api.url) as client:
        body = chat("budget", 3000)
        job_id = await client.submit(body)
        heard = Heard()
        reading = asyncio.create_task(client.read(job_id, heard))
        await until(lambda: len(heard.ids) > 36, "the budget is half used")
        assert first.stop() == 0
        assert f"job {job_id}: attempt 1 handed over (released)" in first.log
        stack.worker()
        await reading
        assert heard.text == answer_to(body)
        assert int(heard.ids[-1].split("-")[1]) <= 64


async def test_a_log_that_lost_its_head_ends_its_job(make_stack: MakeStack, redis: Redis) -> None:
    """Trimmed below the operator's bound, or lost by Redis: an end, not attempts without end."""
    stack = make_stack(sim_itl_ms=10, lease_seconds=1)
    api, first = stack.both()
    async with Client(api.url) as client:
        job_id = await client.submit(chat("headless", ENDLESS))
        await client.read(job_id, stop_after=10)
        first.kill()
        await redis.xtrim(Keys(stack.namespace).stream(job_id), maxlen=2, approximate=False)
        stack.worker()
        await until(lambda: _is(client, job_id, "failed"), "it has ended")
        assert (await client.job(job_id))["error"]["code"] == "log_lost"


async def test_an_answer_that_cannot_be_continued_fails_or_starts_anew(make_stack: MakeStack) -> None:
    """dynamo PR#7930: nothing delivered: from zero; otherwise failed, never a second beginning."""
    stack = make_stack(sim_itl_ms=10, sim_slots=2, lease_seconds=2)
    api, first = stack.api(), stack.worker(sim_ttft_ms=2000)
    async with Client(api.url) as client:
        body = chat("two choices", 20, n=2)
        delivered = await client.submit({**body, "max_tokens": ENDLESS})
        heard = Heard()
        reading = asyncio.create_task(client.read(delivered, heard))
        await until(lambda: len(heard.ids) > 5, "it flows")
        silent = await client.submit(body)
        await until(lambda: _is(client, silent, "running"), "the other is in prefill")
        first.kill()
        stack.worker()
        await reading
        assert heard.end
        assert heard.end["error"]["code"] == "worker_lost"
        await client.read(silent)
        record = await client.job(silent)
        assert record["attempt"] == 2
        choices = record["output"]["choices"]
        assert [choice["message"]["content"] for choice in choices] == [
            answer_to({**body, "seed": seed}) for seed in (0, 1)
        ]


async def test_ending_a_waiting_job_survives_the_death_of_who_ends_it(make_stack: MakeStack, redis: Redis) -> None:
    """The janitor: cancel key set on a job nobody runs; end written but record not terminal."""
    stack = make_stack(lease_seconds=1)
    api, _ = stack.both()
    keys = Keys(stack.namespace)
    async with Client(api.url) as client:
        done = await client.submit(chat("half finished", 5))
        heard = await client.read(done)
        await until(lambda: _is(client, done, "incomplete"), "it has ended")
        # As if the worker had died between the end event and the record.
        await redis.hset(keys.job(done), mapping={"state": "running"})  # type: ignore[misc]
        await redis.persist(keys.job(done))
        await redis.zadd(keys.running("simulated"), {done: 1})
        await until(lambda: _is(client, done, "incomplete"), "the record is repaired")
        again = await client.read(done)
        assert (again.text, again.ends) == (heard.text, 1)


async def test_a_job_that_kills_every_engine_is_given_up(make_stack: MakeStack) -> None:
    """The engine dies inside a living worker: its jobs go on elsewhere at once, and the death is counted."""
    stack = make_stack(sim_itl_ms=10, max_attempts=2)
    api = stack.api()
    async with Client(api.url) as client:
        workers = [stack.worker(module="tests.chaos.worker")]
        body = chat("kills engines", ENDLESS)
        heard = Heard()
        reading = asyncio.create_task(client.read(await client.submit(body), heard))
        for attempt in (1, 2):
            await until(lambda: len(heard.started) == attempt, f"attempt {attempt} runs")  # noqa: B023
            seen = len(heard.ids)
            await until(lambda: len(heard.ids) > seen + 3, "it flows")  # noqa: B023
            if attempt == 1:
                workers.append(stack.worker(module="tests.chaos.worker"))
            workers[attempt - 1].signal(signal.SIGUSR1)
        await reading
        assert heard.end
        assert heard.end["error"]["code"] == "worker_lost"
        assert heard.text == answer_to(body, heard.text.count(" "))
        for worker in workers:
            assert await asyncio.to_thread(worker.wait) == 1, "its supervisor shall start a new one"


async def test_a_worker_with_a_dead_engine_claims_nothing(make_stack: MakeStack) -> None:
    """In the second that it takes to leave, each job that it took would count a loss."""
    stack = make_stack()
    api = stack.api()
    dying = stack.worker(module="tests.chaos.worker")
    async with Client(api.url) as client:
        dying.signal(signal.SIGUSR1)
        await until(lambda: "the engine is dead" in dying.log, "its engine is dead")
        ids = [await client.submit(chat(f"too late {i}", 5)) for i in range(3)]
        assert await asyncio.to_thread(dying.wait) == 1
        for job_id in ids:
            job = await client.job(job_id)
            assert (job["status"], job["attempt"]) == ("queued", 0)


async def test_a_hung_engine_gives_its_jobs_back(make_stack: MakeStack) -> None:
    """It still looks healthy; only that nothing moves any more tells."""
    stack = make_stack()
    api = stack.api()
    hangs = stack.worker(sim_itl_ms=600_000, engine_stall_seconds=2)
    async with Client(api.url) as client:
        bodies = [chat(f"hangs {i}", 20) for i in range(5)]
        heard = [Heard() for _ in bodies]
        reading = [
            asyncio.create_task(client.read(await client.submit(body), one))
            for body, one in zip(bodies, heard, strict=True)
        ]
        await until(lambda: all(one.text for one in heard), "each has its first token")
        stack.worker()
        await asyncio.gather(*reading)
        for body, one in zip(bodies, heard, strict=True):
            assert one.text == answer_to(body)
            assert len(one.started) == 2
        assert await asyncio.to_thread(hangs.wait) == 1


async def _enough(client: Client, job_id: str) -> None:
    """The answer ends here."""
    response = await client.patch(f"/v1/jobs/{job_id}", json={"max_tokens": 1})
    assert response.status_code == 200, response.text


async def _has(client: Client, job_id: str, field: str) -> Any:
    return (await client.job(job_id))[field]


async def _is(client: Client, job_id: str, status: str) -> bool:
    return bool((await client.job(job_id))["status"] == status)
