"""Streams end to end: real pods, a real worker, real clients. Scenarios 1 to 12 of how such systems have failed."""

import asyncio
import secrets

import httpx
import pytest
from redis.asyncio import Redis

from common.eventlog import EventLog
from common.keys import Keys
from tests.conftest import MakeStack
from tests.support.client import Client, Heard, answer_to, chat, chat_stream, sse_events
from tests.support.processes import Stack
from tests.support.wait import until


async def test_a_chat_stream_is_the_whole_answer(client: Client) -> None:
    body = chat("hi", 50)
    assert await chat_stream(client, body) == answer_to(body)


async def test_a_chat_as_a_whole(client: Client) -> None:
    body = chat("hi", 20, seed=7)
    response = await client.post("/v1/chat/completions", json=body)
    assert response.status_code == 200
    whole = response.json()
    assert whole["object"] == "chat.completion"
    assert whole["id"] == response.headers["x-job-id"]
    choice = whole["choices"][0]
    assert choice["message"] == {"role": "assistant", "content": answer_to(body), "refusal": None}
    assert choice["finish_reason"] == "length"
    assert whole["usage"]["completion_tokens"] == 20


async def test_a_completion_both_ways(client: Client) -> None:
    body = {"model": "simulated", "prompt": "once", "max_tokens": 20}
    whole = (await client.post("/v1/completions", json=body)).json()
    assert whole["object"] == "text_completion"
    assert whole["choices"][0]["text"] == answer_to(body)
    text = ""
    async with client.stream("POST", "/v1/completions", json={**body, "stream": True}) as response:
        async for event in sse_events(response):
            if event.data != "[DONE]":
                text += event.json["choices"][0]["text"]
    assert text == answer_to(body)


async def test_several_choices_do_not_mix(client: Client) -> None:
    body = chat("hi", 20, n=3)
    choices = (await client.post("/v1/chat/completions", json=body)).json()["choices"]
    for index, choice in enumerate(choices):
        assert choice["message"]["content"] == answer_to({**body, "seed": index})


async def test_usage_comes_when_asked_for(client: Client) -> None:
    async def usages(**options: object) -> list[object]:
        body = chat("a b c", 5, stream=True, **options)
        async with client.stream("POST", "/v1/chat/completions", json=body) as response:
            chunks = [event.json async for event in sse_events(response) if event.data != "[DONE]"]
        return [chunk["usage"] and chunk["usage"]["completion_tokens"] for chunk in chunks if "usage" in chunk]

    assert await usages() == []
    *others, last = await usages(stream_options={"include_usage": True})
    assert last == 5
    assert others
    assert set(others) == {None}, "as OpenAI: the field is there in every chunk"


async def test_submit_now_attach_later_from_anywhere(client: Client, other: Client) -> None:
    body = chat("hi", 40)
    response = await client.post("/v1/jobs", json=body)
    assert response.status_code == 202
    job_id = response.json()["id"]
    assert response.headers["location"] == f"/v1/jobs/{job_id}"
    heard = await other.read(job_id)
    assert heard.text == answer_to(body)
    record = await client.job(job_id)
    assert record["status"] == "incomplete"
    assert record["output"]["choices"][0]["message"]["content"] == heard.text
    assert record["finish_reason"] == "length"
    assert record["usage"]["completion_tokens"] == 40
    assert record["created_at"] <= record["started_at"] <= record["first_token_at"] <= record["finished_at"]
    assert record["finished_at"] < record["resumable_until"] < record["expires_at"]
    assert record["worker"]


async def test_a_cut_stream_resumes_at_the_exact_event_on_another_pod(client: Client, other: Client) -> None:
    body = chat("resume", 200)
    job_id = await client.submit(body)
    heard = Heard()
    for turn in range(20):
        pod = (client, other)[turn % 2]
        await pod.read(job_id, heard, stop_after=11)
        if heard.end:
            break
    while not heard.end:
        await other.read(job_id, heard)
    assert heard.text == answer_to(body)
    assert heard.ids == sorted(set(heard.ids), key=lambda id: int(id.split("-")[1])), "each event once, in order"


async def test_resume_by_query_parameter(client: Client, other: Client) -> None:
    body = chat("after", 60)
    job_id = await client.submit(body)
    heard = await client.read(job_id, stop_after=5)
    last_id, heard.last_id = heard.last_id, None
    await other.read(job_id, heard, after=last_id)
    assert heard.text == answer_to(body)


async def test_any_chat_stream_can_be_attached_to(client: Client, other: Client) -> None:
    """The id in the chunks is the job's; a `continue` stream goes on without its first reader."""
    body = chat("chat", 100, stream=True, tailrace={"on_disconnect": "continue"})
    text, last_id, job_id = "", "", ""
    async with client.stream("POST", "/v1/chat/completions", json=body) as response:
        job_id = response.headers["x-job-id"]
        async for event in sse_events(response):
            assert event.json["id"] == job_id
            text += event.json["choices"][0]["delta"]["content"]
            last_id = event.id or last_id
            if text.count(" ") > 10:
                break
    async with other.stream(
        "GET", f"/v1/jobs/{job_id}/events", params={"view": "chat"}, headers={"Last-Event-ID": last_id}
    ) as response:
        async for event in sse_events(response):
            if event.data != "[DONE]" and event.json["choices"]:
                text += event.json["choices"][0]["delta"]["content"]
    assert text == answer_to(body)


async def test_resume_between_two_frames_of_one_event(client: Client) -> None:
    """The end of a chat is a usage chunk and [DONE]: both belong to one log event."""
    job_id = await client.submit(chat("frames", 3))
    heard = await client.read(job_id)
    end_id = heard.ids[-1]

    async def frames(after: str) -> list[str]:
        url = f"/v1/jobs/{job_id}/events"
        async with client.stream("GET", url, params={"view": "chat", "after": after}) as response:
            return [event.data async for event in sse_events(response)]

    whole = await frames(heard.ids[-2])
    assert len(whole) == 2
    assert await frames(f"{end_id}.1") == whole[1:]
    native = await client.read(job_id, Heard(last_id=f"{end_id}.1"))
    assert native.ends == 1, "a view with fewer frames tells the event again rather than never"


@pytest.mark.parametrize("moment", ["before", "during", "after", "twice"])
async def test_attach_at_any_moment(client: Client, other: Client, moment: str) -> None:
    """resumable-stream#41, LibreChat#11710: whenever a reader comes, it gets everything from the first event on."""
    body = chat(moment, 60)
    job_id = await client.submit(body)
    if moment == "during":
        await client.read(job_id, stop_after=5)
    elif moment == "after":
        await client.read(job_id)
    heard = (
        await asyncio.gather(other.read(job_id), client.read(job_id))
        if moment == "twice"
        else [await other.read(job_id)]
    )
    for one in heard:
        assert one.text == answer_to(body)
        assert one.ends == 1


async def test_attach_to_a_job_that_waits(make_stack: MakeStack) -> None:
    """It gets its first event when the worker comes."""
    stack = make_stack()
    api, first = stack.both()
    first.stop()
    async with Client(api.url) as client:
        body = chat("waits", 10)
        job_id = await client.submit(body)
        assert (await client.job(job_id))["queue_position"] == 0
        reading = asyncio.create_task(client.read(job_id))
        stack.worker(ready=False)
        assert (await reading).text == answer_to(body)


async def test_joining_a_finished_job_with_a_cursor_ends_at_once(client: Client) -> None:
    """aegra#472: it heartbeats for ever."""
    job_id = await client.submit(chat("finished", 10))
    heard = await client.read(job_id)
    middle = len(heard.ids) // 2  # a busy worker puts several tokens into one event
    part = await client.read(job_id, Heard(last_id=heard.ids[middle]))
    assert part.ids == heard.ids[middle + 1 :]
    at_end = await client.read(job_id, Heard(last_id=heard.ids[-1]))
    assert at_end.end == heard.end
    beyond = await client.read(job_id, Heard(last_id="9-999"))
    assert beyond.ends == 1
    assert beyond.text == ""


async def test_a_lost_end_marker_is_told_from_the_record(client: Client, redis: Redis, stack: Stack) -> None:
    """resumable-stream#47: a reader always ends, also when the log has no end."""
    body = chat("marker", 10)
    job_id = await client.submit(body)
    heard = await client.read(job_id)
    assert heard.last_id
    await redis.xdel(Keys(stack.namespace).stream(job_id), heard.last_id)
    again = await client.read(job_id)
    assert again.text == answer_to(body)
    assert again.ends == 1


async def test_an_expired_stream_still_gives_its_result_in_one_piece(
    client: Client, redis: Redis, stack: Stack
) -> None:
    """openai-python#2828: after the window for resuming, the whole text in one event, then the end."""
    body = chat("expired", 30)
    job_id = await client.submit(body)
    heard = await client.read(job_id)
    await redis.delete(Keys(stack.namespace).stream(job_id))
    late = await client.read(job_id)
    assert late.text == answer_to(body)
    assert late.ends == 1
    response = await client.get(f"/v1/jobs/{job_id}/events", headers={"Last-Event-ID": heard.ids[3]})
    assert response.status_code == 409
    assert response.json()["error"]["code"] == "stream_expired"


async def test_resuming_from_a_trimmed_position_is_an_error(client: Client, redis: Redis, stack: Stack) -> None:
    """deer-flow#4413: XREAD would silently skip what was trimmed."""
    job_id = await client.submit(chat("trimmed", 50))
    heard = await client.read(job_id)
    await redis.xtrim(Keys(stack.namespace).stream(job_id), maxlen=10, approximate=False)
    async with client.stream("GET", f"/v1/jobs/{job_id}/events", headers={"Last-Event-ID": heard.ids[3]}) as response:
        seen = [event async for event in sse_events(response)]
    assert [event.event for event in seen] == ["error"]
    assert seen[0].json["error"]["code"] == "stream_trimmed"


async def test_unknown_jobs_and_cursors_ahead_of_the_log(client: Client, make_stack: MakeStack) -> None:
    for path in ("/v1/jobs/job-none", "/v1/jobs/job-none/events"):
        response = await client.get(path)
        assert response.status_code == 404
        assert response.json()["error"]["code"] == "job_not_found"
    job_id = await client.submit(chat("ahead", 1000))
    response = await client.get(f"/v1/jobs/{job_id}/events", headers={"Last-Event-ID": "1-5000"})
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "invalid_cursor"
    # Of an attempt that never was: told at once, and the pod lives on.
    heard = await client.read(job_id, stop_after=3)
    url = f"/v1/jobs/{job_id}/events"
    async with client.stream("GET", url, params={"after": "0-2"}) as refused:
        assert refused.status_code == 400
    assert heard.last_id
    await client.post(f"/v1/jobs/{job_id}/cancel")


async def test_an_idempotent_repeat_attaches_to_the_first_job(client: Client, other: Client) -> None:
    """LibreChat#14059: the id of a generation is never used for another one."""
    body, headers = chat("same", 20), {"Idempotency-Key": secrets.token_hex(8)}
    first = await client.post("/v1/jobs", json=body, headers=headers)
    repeat = await other.post("/v1/jobs", json=body, headers=headers)
    assert (first.status_code, repeat.status_code) == (202, 200)
    assert repeat.json()["id"] == first.json()["id"]
    streamed = await client.post("/v1/chat/completions", json=body, headers=headers)
    assert streamed.status_code == 200
    assert streamed.json()["id"] == first.json()["id"]
    wrong = await client.post("/v1/jobs", json=chat("other", 20), headers=headers)
    assert wrong.status_code == 409
    assert wrong.json()["error"]["code"] == "idempotency_key_reused"


async def test_nothing_is_left_after_the_times_to_live(make_stack: MakeStack, redis: Redis) -> None:
    """scale-agentex-python#339: ended, failed, cancelled, abandoned and never started jobs leave not one key."""
    stack = make_stack(result_ttl_seconds=3, stream_ttl_seconds=3, sim_slots=4)
    api, worker = stack.both()
    async with Client(api.url) as client:
        done = await client.submit(chat("done", 5), headers={"Idempotency-Key": "k"})
        await client.read(done)
        running = await client.submit(chat("running", 100_000))
        await client.read(running, stop_after=1)
        await client.post(f"/v1/jobs/{running}/cancel")
        timed_out = await client.submit(chat("late", 100_000, tailrace={"deadline_seconds": 0.2}))
        assert (await client.read(timed_out)).end
        with pytest.raises(httpx.ReadTimeout):
            await client.post("/v1/chat/completions", json=chat("abandoned", 100_000), timeout=0.3)
        blockers = [await client.submit(chat(f"b{i}", 100_000)) for i in range(4)]
        never = await client.submit(chat("never", 5, tailrace={"queue_timeout_seconds": 0.2}))
        await client.read(never)
        deleted = await client.submit(chat("deleted", 5))
        await client.delete(f"/v1/jobs/{deleted}")
        for blocker in blockers:
            await client.post(f"/v1/jobs/{blocker}/cancel")
        await until(lambda: _idle(client), "all have ended")
    api.stop()
    worker.stop()
    # Not of any job: the memory of models, and helpers that live for a minute.
    keys = Keys(stack.namespace)
    keep = {key.encode() for key in (keys.models, keys.workers, keys.swept("simulated"), keys.wake("simulated"))}

    async def leftovers() -> set[bytes]:
        ours = {key async for key in redis.scan_iter(f"{stack.namespace}:*")}
        arq = {key async for key in redis.scan_iter("arq:job:*") if key.split(b":")[-1].decode() in ids}
        return (ours | arq) - keep

    ids = {done, running, timed_out, never, deleted, *blockers}

    async def clean() -> bool:
        return not await leftovers()

    await until(clean, "no key is left")


async def _idle(client: Client) -> bool:
    return await client.metric("tailrace_queue_depth") + await client.metric("tailrace_running_jobs") == 0


async def test_silence_is_no_error(make_stack: MakeStack) -> None:
    """docket#425, scale-agentex#241: reads that find nothing for longer than any client's default timeout."""
    stack = make_stack(sim_ttft_ms=100, sim_itl_ms=6500, stall_timeout_seconds=60)
    api = stack.api(keepalive_seconds=1)
    stack.worker()
    async with Client(api.url) as client:
        body = chat("quiet", 2)
        assert (await client.read(await client.submit(body))).text == answer_to(body)


async def test_silence_before_the_first_token_is_bridged(make_stack: MakeStack) -> None:
    """litellm#37322: a load balancer cuts 60 s of silence. In SSE a comment is what every client skips."""
    stack = make_stack(sim_ttft_ms=3000)
    api = stack.api(keepalive_seconds=0.3, first_event_wait_seconds=0.1)
    stack.worker()
    async with Client(api.url) as client:
        body = chat("patience", 3, stream=True)
        async with client.stream("POST", "/v1/chat/completions", json=body) as response:
            raw = b"".join([chunk async for chunk in response.aiter_raw()])
    assert raw.index(b": keepalive\n\n") < raw.index(b"data: ")
    assert raw.endswith(b"data: [DONE]\n\n")


async def test_no_record_is_terminal_before_its_log_has_ended(client: Client, redis: Redis, stack: Stack) -> None:
    """Invariant 7: the other order would leave readers of a crashed worker's job without an end."""
    keys = Keys(stack.namespace)
    log = EventLog(redis, keys)

    async def watch(job_id: str) -> None:
        while await redis.hget(keys.job(job_id), "state") in (b"queued", b"running"):  # type: ignore[misc]
            pass
        last = await log.last(job_id)
        assert last is not None
        assert last["type"] == "end"

    for i in range(30):
        await watch(await client.submit(chat(f"order {i}", 2)))
