"""Batches, end to end: accepted whole or not at all, counted, cancelled, and read back in the order of the input."""

import asyncio
import json
from typing import Any

import httpx
import msgpack
import pytest
from openai.types import Batch
from openai.types.webhooks import BatchCompletedWebhookEvent
from redis.asyncio import Redis

from api.auth import digest_of
from common.keys import Keys
from tests.conftest import MakeStack
from tests.responses.support import check_response
from tests.support.client import Client, answer_to, chat, lines
from tests.support.processes import Stack
from tests.support.receiver import Receiver
from tests.support.wait import until
from tests.test_webhooks import SETTINGS as HOOKS

BATCH = "/v1/jobs/batch"


def line(custom_id: str, body: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    body = chat(custom_id, 3) if body is None else body
    return {"custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions", "body": body, **more}


def jsonl(entries: list[Any]) -> bytes:
    return b"".join(entry if isinstance(entry, bytes) else json.dumps(entry).encode() + b"\n" for entry in entries)


async def submitted(client: Client, entries: list[Any], **headers: str) -> str:
    response = await client.post(BATCH, content=jsonl(entries), headers=headers)
    assert response.status_code == 202, response.text
    batch_id: str = response.json()["id"]
    assert response.headers["location"] == f"{BATCH}/{batch_id}"
    return batch_id


async def state(client: Client, batch_id: str) -> dict[str, Any]:
    response = await client.get(f"{BATCH}/{batch_id}")
    assert response.status_code == 200, response.text
    batch: dict[str, Any] = response.json()
    return batch


async def ended(client: Client, batch_id: str, status: str = "completed") -> dict[str, Any]:
    async def look() -> dict[str, Any] | None:
        batch = await state(client, batch_id)
        return batch if batch["status"] == status else None

    batch: dict[str, Any] = await until(look, f"a batch that is {status}", seconds=60)
    return batch


async def results(client: Client, batch_id: str) -> list[dict[str, Any]]:
    async with client.stream("GET", f"{BATCH}/{batch_id}/results") as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("application/jsonl")
        return [json.loads(text) async for text in lines(response)]


async def test_every_line_is_answered_in_the_order_of_the_input(client: Client, other: Client) -> None:
    bodies = [chat(f"question {n}", 2 + n % 5, seed=n) for n in range(100)]
    batch_id = await submitted(client, [line(f"line {n}", body) for n, body in enumerate(bodies)])
    batch = await ended(other, batch_id)
    assert batch["request_counts"] == {"total": 100, "completed": 100, "failed": 0}
    assert batch["object"] == "batch"
    assert batch["results_expire_at"] > batch["completed_at"] >= batch["created_at"]
    told = await results(other, batch_id)
    assert [entry["custom_id"] for entry in told] == [f"line {n}" for n in range(100)]
    for entry, body in zip(told, bodies, strict=True):
        answer = entry["response"]["body"]
        assert (entry["response"]["status_code"], entry["error"]) == (200, None)
        assert entry["response"]["request_id"] == answer["id"]
        assert answer["object"] == "chat.completion"
        assert answer["choices"][0]["message"]["content"] == answer_to(body)


async def test_openais_own_types_read_a_batch(client: Client) -> None:
    batch_id = await submitted(client, [line("a")])
    batch = Batch.model_construct(**await ended(client, batch_id))
    assert (batch.id, batch.status, batch.object) == (batch_id, "completed", "batch")


async def test_text_completions_and_blank_lines(client: Client) -> None:
    completion = line("b", {"model": "simulated", "prompt": "hi", "max_tokens": 2}, url="/v1/completions")
    batch_id = await submitted(client, [line("a"), b"\n", completion, b"  \r\n"])
    await ended(client, batch_id)
    objects = [entry["response"]["body"]["object"] for entry in await results(client, batch_id)]
    assert objects == ["chat.completion", "text_completion"]


def response_line(custom_id: str, **body: Any) -> dict[str, Any]:
    return line(custom_id, {"model": "simulated", "input": custom_id, **body}, url="/v1/responses")


async def test_a_response_is_what_its_endpoint_gives(client: Client, other: Client) -> None:
    entries = [response_line("a", max_output_tokens=3), line("b"), response_line("c", max_output_tokens=2, store=False)]
    batch_id = await submitted(client, entries)
    batch = await ended(client, batch_id)
    assert batch["request_counts"] == {"total": 3, "completed": 3, "failed": 0}
    stored, chatted, unstored = await results(other, batch_id)
    answer = check_response(stored["response"]["body"])
    assert (answer["object"], answer["status"]) == ("response", "incomplete")
    assert stored["response"]["request_id"] == answer["id"]
    assert stored["id"] == answer["id"].replace("resp_", "batch_req_")
    assert (await other.get(f"/v1/responses/{answer['id']}")).json() == answer
    assert chatted["response"]["body"]["object"] == "chat.completion"
    hidden = check_response(unstored["response"]["body"])
    assert (await other.get(f"/v1/responses/{hidden['id']}")).status_code == 404
    following = await submitted(client, [response_line("d", max_output_tokens=2, previous_response_id=answer["id"])])
    await ended(client, following)
    [result] = await results(client, following)
    assert result["response"]["body"]["previous_response_id"] == answer["id"]


BAD: list[tuple[str, Any, int, str, str]] = [
    ("no json", b"{nope\n", 400, "invalid_json", "line 2"),
    ("no object", b"[1]\n", 400, "invalid_json", "line 2"),
    ("unknown field", line("b", more=1), 400, "invalid_request", "line 2: more"),
    ("no custom_id", {**line("b"), "custom_id": ""}, 400, "invalid_request", "line 2: custom_id"),
    ("custom_id twice", line("a"), 400, "invalid_request", "line 2: custom_id"),
    ("method", line("b", method="GET"), 400, "invalid_request", "line 2: method"),
    ("url", line("b", url="/v1/embeddings"), 400, "invalid_request", "line 2: url"),
    ("body", line("b", chat(max_tokens=0)), 400, "invalid_request", "line 2: body.max_tokens"),
    ("stream", line("b", chat(stream=True)), 400, "invalid_request", "line 2: body.stream"),
    ("response's stream", response_line("b", stream=True), 400, "invalid_request", "line 2: body.stream"),
    ("background", response_line("b", background=True), 400, "invalid_request", "line 2: body.background"),
    ("response's", response_line("b", max_output_tokens=0), 400, "invalid_request", "line 2: body.max_output_tokens"),
    ("input", response_line("b", input=[]), 400, "invalid_request", "line 2: body.input"),
    (
        "previous",
        response_line("b", previous_response_id="resp_x"),
        400,
        "previous_response_not_found",
        "line 2: body.previous_response_id",
    ),
    ("option", line("b", chat(tailrace={"x": 1})), 400, "invalid_request", "line 2: body.tailrace.x"),
    ("model", line("b", chat(model="unknown")), 404, "model_not_found", "line 2: model"),
]


@pytest.mark.parametrize(("bad", "status", "code", "param"), [case[1:] for case in BAD], ids=[case[0] for case in BAD])
async def test_one_bad_line_refuses_all(client: Client, bad: Any, status: int, code: str, param: str) -> None:
    before = await client.metric("tailrace_jobs_submitted_total")
    response = await client.post(BATCH, content=jsonl([line("a"), bad, line("c")]))
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert (error["code"], error["param"]) == (code, param)
    assert error["message"].startswith("Line 2: ")
    assert await client.metric("tailrace_jobs_submitted_total") == before


async def test_an_empty_batch_and_an_unknown_one(client: Client) -> None:
    assert (await client.post(BATCH, content=b"\n\n")).status_code == 400
    for method, path in (("GET", ""), ("GET", "/results"), ("POST", "/cancel")):
        response = await client.request(method, f"{BATCH}/batch_none{path}")
        assert response.status_code == 404
        assert response.json()["error"]["code"] == "batch_not_found"


async def test_limits(make_stack: MakeStack, redis: Redis) -> None:
    stack = make_stack(max_queue_depth=10, max_body_bytes=2048, batch_max_bytes=4096)
    async with Client(stack.api().url) as client:
        stack.worker(sim_slots=1, sim_ttft_ms=60_000)
        busy = await client.submit(chat())
        await until(lambda: _started(client, busy), "the slot is taken")
        assert (await client.post(BATCH, content=jsonl([line(f"{n}") for n in range(6)]))).status_code == 413
        for size, limit in ((5000, 4096), (3000, 2048)):
            response = await client.post(BATCH, content=jsonl([line("a", chat("x" * size))]))
            assert response.status_code == 413
            assert f"larger than {limit} bytes" in response.json()["error"]["message"]
        batch_id = await submitted(client, [line(f"{n}") for n in range(4)])
        response = await client.post(BATCH, content=jsonl([line("a"), line("b")]))
        assert response.status_code == 429, "only one more fits into the half of the queue that batches may fill"
        assert response.json()["error"]["code"] == "queue_full"
        assert await redis.zcard(Keys(stack.namespace).queue("simulated")) == 4
        for job_id in [busy, *[await client.submit(chat()) for _ in range(6)]]:
            await client.delete(f"/v1/jobs/{job_id}")
        await client.post(f"{BATCH}/{batch_id}/cancel")


async def _started(client: Client, job_id: str) -> bool:
    return bool((await client.job(job_id))["started_at"])


async def test_an_idempotency_key_names_the_first_batch(client: Client) -> None:
    entries = [line("a"), line("b")]
    first = await submitted(client, entries, **{"Idempotency-Key": "once"})
    again = await client.post(BATCH, content=jsonl(entries), headers={"Idempotency-Key": "once"})
    assert (again.status_code, again.json()["id"]) == (200, first)
    changed = await client.post(BATCH, content=jsonl([line("a")]), headers={"Idempotency-Key": "once"})
    assert changed.json()["error"]["code"] == "idempotency_key_reused"
    assert (await ended(client, first))["request_counts"]["total"] == 2


async def test_a_batch_yields_to_those_who_wait(make_stack: MakeStack) -> None:
    stack = make_stack(sim_slots=1, sim_ttft_ms=100)
    async with Client(stack.api().url) as client:
        stack.worker()
        batch_id = await submitted(client, [line(f"{n}") for n in range(100)], **{"X-Tailrace-Priority": "100"})
        job_id = await client.submit(chat(tokens=1))
        job = await client.job(job_id)
        assert job["queue_position"] in (0, None), "ahead of every line that waits"
        await until(lambda: _done(client, job_id), "the answer that somebody waits for")
        assert (await state(client, batch_id))["status"] == "in_progress"
        some = await results(client, batch_id)
        assert [entry["custom_id"] for entry in some] == [f"{n}" for n in range(len(some))], "what has ended so far"
        await client.post(f"{BATCH}/{batch_id}/cancel")
        assert len(some) < 100


async def _done(client: Client, job_id: str) -> bool:
    return bool((await client.job(job_id))["finished_at"])


async def test_a_batch_survives_its_worker_and_its_pod(make_stack: MakeStack) -> None:
    stack = make_stack(sim_slots=8, sim_itl_ms=10, lease_seconds=2)
    pod, worker = stack.both()
    bodies = [chat(f"question {n}", 10) for n in range(60)]
    async with Client(pod.url) as client:
        batch_id = await submitted(client, [line(f"{n}", body) for n, body in enumerate(bodies)])
        await until(lambda: _some_completed(client, batch_id), "the first answers")
    worker.kill()
    pod.kill()
    stack.worker(ready=False)
    async with Client(stack.api().url) as client:
        batch = await ended(client, batch_id)
        assert batch["request_counts"] == {"total": 60, "completed": 60, "failed": 0}
        answers = [entry["response"]["body"] for entry in await results(client, batch_id)]
        texts = [answer["choices"][0]["message"]["content"] for answer in answers]
        assert texts == [answer_to(body) for body in bodies]


async def _some_completed(client: Client, batch_id: str) -> bool:
    return bool((await state(client, batch_id))["request_counts"]["completed"])


async def test_cancelling_ends_what_waits_and_what_runs(make_stack: MakeStack, redis: Redis) -> None:
    stack = make_stack(**HOOKS, sim_slots=2, sim_itl_ms=1000)
    pod = stack.api()
    async with Client(pod.url) as client, Receiver() as receiver:
        stack.worker()
        headers = {"X-Tailrace-Webhook-Url": receiver.url}
        batch_id = await submitted(client, [line(f"{n}", chat(tokens=500)) for n in range(40)], **headers)
        response = await client.post(f"{BATCH}/{batch_id}/cancel")
        assert response.json()["status"] in ("cancelling", "cancelled")
        batch = await ended(client, batch_id, "cancelled")
        assert batch["request_counts"] == {"total": 40, "completed": 0, "failed": 40}
        assert batch["cancelled_at"] >= batch["cancelling_at"]
        again = await client.post(f"{BATCH}/{batch_id}/cancel")
        assert (again.status_code, again.json()["status"]) == (200, "cancelled")
        told = await results(client, batch_id)
        assert len(told) == 40
        assert all(entry["response"] is None and entry["error"]["code"] == "job_cancelled" for entry in told)
        await until(lambda: receiver.received, "the event")
        assert receiver.received[0].event["type"] == "batch.cancelled"
        assert not await redis.zcard(Keys(stack.namespace).queue("simulated"))


async def test_an_ended_batch_is_told_once_and_cannot_be_cancelled(make_stack: MakeStack, redis: Redis) -> None:
    async with Receiver() as receiver:
        stack = make_stack(**HOOKS, webhook_url=receiver.url)
        async with Client(stack.api().url) as client:
            stack.both()
            own = chat(tokens=1, tailrace={"webhook_url": receiver.url})
            batch_id = await submitted(client, [line("a", own), *[line(f"{n}") for n in range(20)]])
            await ended(client, batch_id)
            await until(lambda: receiver.about(batch_id), "the event")
            response = await client.post(f"{BATCH}/{batch_id}/cancel")
            assert response.json()["error"]["code"] == "batch_already_ended"
            await until(lambda: _empty(redis, stack), "an empty outbox")
    assert len(receiver.received) == 2, "the batch, and the one line that asked for it"
    event = BatchCompletedWebhookEvent.model_validate_json(receiver.about(batch_id)[0].body)
    assert (event.data.id, event.type) == (batch_id, "batch.completed")


async def _empty(redis: Redis, stack: Stack) -> bool:
    return not await redis.exists(Keys(stack.namespace).webhooks)


async def test_failed_and_deleted_lines_are_counted_and_named(make_stack: MakeStack, redis: Redis) -> None:
    stack = make_stack(sim_slots=1, sim_ttft_ms=60_000)
    async with Client(stack.api().url) as client:
        stack.worker()
        busy = await client.submit(chat())
        late = chat(tailrace={"queue_timeout_seconds": 0.05})
        batch_id = await submitted(client, [line("late", late), line("deleted")])
        entries = await redis.zrange(Keys(stack.namespace).batch_lines(batch_id), 0, -1)
        await client.delete(f"/v1/jobs/{msgpack.unpackb(entries[1])[0]}")
        batch = await ended(client, batch_id)
        assert batch["request_counts"] == {"total": 2, "completed": 0, "failed": 2}
        told = {entry["custom_id"]: entry for entry in await results(client, batch_id)}
        assert told["late"]["response"]["status_code"] == 504
        assert told["late"]["response"]["body"]["error"]["code"] == "queue_timeout"
        assert (told["deleted"]["response"], told["deleted"]["error"]["code"]) == (None, "job_not_found")
        await client.delete(f"/v1/jobs/{busy}")


async def test_somebody_elses_batch_is_not_there(make_stack: MakeStack) -> None:
    stack = make_stack(api_keys=f"alice:{digest_of('a')},bob:{digest_of('b')}")
    url = stack.api().url
    alice, bob = ({"Authorization": f"Bearer {key}"} for key in "ab")
    async with Client(url) as client:
        stack.worker()
        batch_id = await submitted(client, [line("a")], **alice)
        for method, path in (("GET", ""), ("GET", "/results"), ("POST", "/cancel")):
            assert (await client.request(method, f"{BATCH}/{batch_id}{path}", headers=bob)).status_code == 404
        assert (await client.post(BATCH, content=jsonl([line("a")]))).status_code == 401
        assert (await client.get(f"{BATCH}/{batch_id}", headers=alice)).status_code == 200


async def test_results_live_until_the_batch_has_ended_and_leave_nothing(make_stack: MakeStack, redis: Redis) -> None:
    stack = make_stack(sim_slots=1, result_ttl_seconds=2, stream_ttl_seconds=0.2)
    async with Client(stack.api().url) as client:
        stack.worker()
        slow = [line(f"{n}", chat(tokens=100)) for n in range(16)]
        batch_id = await submitted(client, [line("first"), *slow], **{"Idempotency-Key": "x"})
        await ended(client, batch_id)
        assert (await results(client, batch_id))[0]["response"]["status_code"] == 200, "longer than its own two seconds"
        pattern = f"{stack.namespace}:*"
        await until(lambda: _only_fleet(redis, pattern), "no key of the batch left")
        assert (await client.get(f"{BATCH}/{batch_id}")).status_code == 404


async def _only_fleet(redis: Redis, pattern: str) -> bool:
    left = [key.decode().split(":")[1] for key in await redis.keys(pattern)]
    return not {"job", "batch", "batch-lines", "idem", "deadlines", "running", "cancel", "stream"} & set(left)


async def test_a_reader_of_results_that_leaves_harms_nobody(client: Client) -> None:
    batch_id = await submitted(client, [line(f"{n}") for n in range(200)])
    await ended(client, batch_id)
    async with client.stream("GET", f"{BATCH}/{batch_id}/results") as response:
        await anext(response.aiter_bytes())
    assert len(await results(client, batch_id)) == 200


async def test_an_upload_that_is_cut_enqueues_nothing(client: Client) -> None:
    before = await client.metric("tailrace_jobs_submitted_total")

    async def cut() -> Any:
        yield jsonl([line("a"), line("b")])
        await asyncio.sleep(0)
        raise ConnectionError

    with pytest.raises((ConnectionError, httpx.TransportError)):
        await client.post(BATCH, content=cut())
    assert await client.metric("tailrace_jobs_submitted_total") == before
