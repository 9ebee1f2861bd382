"""Webhooks, end to end: real pods, a real worker, and a receiver that fails in all the ways receivers do."""

import asyncio
import base64
import secrets
from collections.abc import AsyncIterator
from typing import Any

import pytest
from openai import OpenAI
from openai.types import webhooks
from redis.asyncio import Redis

from api.auth import digest_of
from common.keys import Keys
from tests.conftest import MakeStack
from tests.openai.strict import check
from tests.support.client import Client, chat
from tests.support.processes import Stack, free_port
from tests.support.receiver import HANG, Receiver
from tests.support.upstream import ScriptedUpstream
from tests.support.wait import until


def new_secret() -> str:
    return "whsec_" + base64.b64encode(secrets.token_bytes(32)).decode()


OLD, NEW = new_secret(), new_secret()
SETTINGS: dict[str, Any] = {
    "webhook_secrets": f"{OLD},{NEW}",
    "webhook_allowed_networks": "127.0.0.0/8",
    "webhook_retry_seconds": 0.05,
    "webhook_timeout_seconds": 3,
    "webhook_max_tries": 5,
}


@pytest.fixture(scope="module")
def hooked(redis_server: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Two pods that may call loopback, and a worker."""
    stack = Stack(redis_server.url, tmp_path_factory.mktemp("hooked"), f"t{secrets.token_hex(4)}", **SETTINGS)
    stack.api()
    stack.both()
    yield stack
    stack.stop()


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with Receiver() as receiver:
        yield receiver


@pytest.fixture
async def sender(hooked: Stack) -> AsyncIterator[Client]:
    async with Client(hooked.apis[0].url) as client:
        yield client


def telling(receiver: Receiver, **more: Any) -> dict[str, Any]:
    return chat(tokens=2, tailrace={"webhook_url": receiver.url, **more})


async def outbox_is_empty(redis: Redis, stack: Stack) -> None:
    keys = Keys(stack.namespace)
    await until(lambda: _none(redis, keys.webhooks), "an empty outbox")
    assert not await redis.keys(f"{keys.webhook_prefix}*")


async def until_logged(stack: Stack, line: str) -> None:
    await until(lambda: any(line in api.log for api in stack.apis), f"{line!r} in a pod's log")


async def _none(redis: Redis, key: str) -> bool:
    return not await redis.exists(key)


async def test_the_end_of_a_job_is_told_once_and_signed(
    hooked: Stack, sender: Client, receiver: Receiver, redis: Redis
) -> None:
    jobs = [await sender.submit(telling(receiver)) for _ in range(20)]
    await until(lambda: len(receiver.received) >= len(jobs), "all events")
    await outbox_is_empty(redis, hooked)
    assert sorted(received.event["data"]["id"] for received in receiver.received) == sorted(jobs)
    first = receiver.received[0]
    assert first.path == "/hook?token=secret"
    assert first.event["type"] == "job.incomplete", "cut at max_tokens"
    assert first.event["object"] == "event"
    assert first.event["id"] == first.id
    for secret in (OLD, NEW):
        verifier = OpenAI(api_key="none", webhook_secret=secret).webhooks
        for received in receiver.received:
            verifier.verify_signature(received.body, received.headers)


async def test_background_responses_are_told_of_as_openai_does(
    make_stack: MakeStack, upstream: ScriptedUpstream, receiver: Receiver, redis: Redis
) -> None:
    stack = make_stack(**SETTINGS)
    async with Client(stack.api().url) as client:
        stack.worker()
        stack.worker(engine="openai", upstream_url=upstream.url)

        async def background(prompt: str, model: str = "simulated", tokens: int = 1000) -> str:
            told = {"webhook_url": receiver.url}
            body = {"model": model, "input": prompt, "max_output_tokens": tokens, "background": True, "tailrace": told}
            response = await client.post("/v1/responses", json=body)
            assert response.status_code == 200, response.text
            return str(response.json()["id"])

        expected: dict[str, Any] = {
            await background("hello", model="scripted"): webhooks.ResponseCompletedWebhookEvent,
            await background("broken", model="scripted"): webhooks.ResponseFailedWebhookEvent,
            await background("hello", tokens=2): webhooks.ResponseIncompleteWebhookEvent,
            await background("filter", model="scripted"): webhooks.ResponseIncompleteWebhookEvent,
            (cancelled := await background("hello")): webhooks.ResponseCancelledWebhookEvent,
        }
        assert (await client.post(f"/v1/responses/{cancelled}/cancel")).status_code == 200
        await until(lambda: len(receiver.received) >= len(expected), "all events")
        await outbox_is_empty(redis, stack)
        assert len(receiver.received) == len(expected)
        for response_id, event_of in expected.items():
            [received] = receiver.about(response_id)
            unwrapped = OpenAI(api_key="none", webhook_secret=NEW).webhooks.unwrap(received.body, received.headers)
            assert isinstance(unwrapped, event_of)
            check(event_of, received.event)
            # docs/webhooks.md: no more than the id, and the type's second word is the status that one then fetches.
            status = (await client.get(f"/v1/responses/{response_id}")).json()["status"]
            assert received.event["type"] == f"response.{status}"
            assert received.event["data"] == {"id": response_id}
            assert received.event["id"] == received.id == response_id.replace("resp_", "evt_")


async def test_the_receivers_path_is_not_logged(hooked: Stack, sender: Client, receiver: Receiver) -> None:
    job_id = await sender.submit(telling(receiver))
    told = f"webhook job.incomplete of {job_id} to http://127.0.0.1:{receiver.port}"
    await until_logged(hooked, f"{told}, try 1: delivered")
    assert not any("token=secret" in api.log for api in hooked.apis)


async def test_cancelled_and_failed_jobs_are_told_and_deleted_ones_are_not(
    make_stack: MakeStack, receiver: Receiver, redis: Redis
) -> None:
    stack = make_stack(**SETTINGS)
    async with Client(stack.api().url) as client:
        stack.worker(sim_slots=1, sim_itl_ms=1000)
        busy = await client.submit(chat(tokens=1000))
        deleted = await client.submit(telling(receiver))
        cancelled = await client.submit(telling(receiver))
        failed = await client.submit(telling(receiver, queue_timeout_seconds=0.1))
        await client.delete(f"/v1/jobs/{deleted}")
        await client.post(f"/v1/jobs/{cancelled}/cancel")
        await until(lambda: len(receiver.received) == 2, "two events")
        await outbox_is_empty(redis, stack)
        told = {received.event["data"]["id"]: received.event["type"] for received in receiver.received}
        assert told == {cancelled: "job.cancelled", failed: "job.failed"}
        await client.delete(f"/v1/jobs/{busy}")


async def test_a_receiver_that_fails_is_tried_again_with_the_same_id(
    hooked: Stack, sender: Client, receiver: Receiver, redis: Redis
) -> None:
    receiver.answers = iter([500, (302, f"Location: {receiver.url}"), HANG])
    job_id = await sender.submit(telling(receiver))
    await until(lambda: len(receiver.received) == 4, "the fourth try")
    await outbox_is_empty(redis, hooked)
    assert len({received.id for received in receiver.about(job_id)}) == 1
    assert len(receiver.about(job_id)) == 4, "a redirect is not followed, and a success is the last try"


async def test_a_receiver_that_never_succeeds_is_given_up(
    hooked: Stack, sender: Client, receiver: Receiver, redis: Redis
) -> None:
    receiver.answers = iter([500] * 100)
    job_id = await sender.submit(telling(receiver))
    await until(lambda: len(receiver.received) == SETTINGS["webhook_max_tries"], "the last try", seconds=60)
    await outbox_is_empty(redis, hooked)
    assert len(receiver.about(job_id)) == SETTINGS["webhook_max_tries"]
    told = f"webhook job.incomplete of {job_id} to http://127.0.0.1:{receiver.port}"
    await until_logged(hooked, f"{told}, try 5: given up: HTTP 500")


async def test_retry_after_is_heeded(hooked: Stack, sender: Client, receiver: Receiver) -> None:
    receiver.answers = iter([(503, "Retry-After: 120")])
    job_id = await sender.submit(telling(receiver))
    told = f"webhook job.incomplete of {job_id} to http://127.0.0.1:{receiver.port}"
    await until_logged(hooked, f"{told}, try 1: failed, again in 120.0 s")
    await until(lambda: _waiting(sender), "the metric of the outbox")


async def _waiting(client: Client) -> bool:
    return await client.metric("tailrace_webhooks_waiting") >= 1


async def test_gone_ends_it_for_this_receiver(hooked: Stack, sender: Client, receiver: Receiver, redis: Redis) -> None:
    receiver.answers = iter([410])
    first = await sender.submit(telling(receiver))
    told = f"to http://127.0.0.1:{receiver.port}, try 1: given up"
    await until_logged(hooked, f"webhook job.incomplete of {first} {told}: HTTP 410")
    second = await sender.submit(telling(receiver))
    await until_logged(hooked, f"webhook job.incomplete of {second} {told}: it answered 410")
    assert len(receiver.received) == 1


async def test_gone_is_said_to_one_owner(make_stack: MakeStack, receiver: Receiver) -> None:
    """A URL is not one owner's alone: nobody can shut it for the others."""
    receiver.answers = iter([410])
    stack = make_stack(**SETTINGS, api_keys=f"alice:{digest_of('a')},bob:{digest_of('b')}")
    alice, bob = ({"Authorization": f"Bearer {key}"} for key in "ab")
    async with Client(stack.api().url) as client:
        stack.worker()
        first = await client.submit(telling(receiver), headers=alice)
        await until_logged(stack, f"{first} to http://127.0.0.1:{receiver.port}, try 1: given up: HTTP 410")
        theirs = await client.submit(telling(receiver), headers=bob)
        await until(lambda: receiver.about(theirs), "bob's event")
        second = await client.submit(telling(receiver), headers=alice)
        await until_logged(stack, f"{second} to http://127.0.0.1:{receiver.port}, try 1: given up: it answered 410")


async def test_a_pod_killed_in_mid_delivery(make_stack: MakeStack, receiver: Receiver, redis: Redis) -> None:
    receiver.answers = iter([HANG])
    stack = make_stack(**SETTINGS)
    pod, _ = stack.both()
    async with Client(pod.url) as client:
        job_id = await client.submit(telling(receiver))
    await until(lambda: receiver.received, "the first try")
    pod.kill()
    stack.api()
    await until(lambda: len(receiver.received) == 2, "the try of the other pod, once the lease was over")
    await outbox_is_empty(redis, stack)
    assert len(receiver.about(job_id)) == 2
    assert len({received.id for received in receiver.received}) == 1


async def test_everybody_who_saw_the_end_dies(make_stack: MakeStack, redis: Redis) -> None:
    """The event is in Redis together with the end: no process needs to live for it."""
    absent = Receiver(port=free_port())
    stack = make_stack(**{**SETTINGS, "webhook_max_tries": 12})
    pod, worker = stack.both()
    async with Client(pod.url) as client:
        job_id = await client.submit(telling(absent))
        await until(lambda: _ended(client, job_id), "the end")
    worker.kill()
    pod.kill()
    async with Receiver(port=absent.port) as receiver:
        stack.api()
        await until(lambda: receiver.about(job_id), "the event")
        await outbox_is_empty(redis, stack)
        assert len(receiver.received) == 1


async def _ended(client: Client, job_id: str) -> bool:
    return bool((await client.job(job_id))["status"] == "incomplete")


async def test_a_slow_receiver_does_not_hold_up_the_others(make_stack: MakeStack, receiver: Receiver) -> None:
    stack = make_stack(**{**SETTINGS, "webhook_timeout_seconds": 600})
    api, _ = stack.both()
    async with Client(api.url) as client, Receiver(answers=iter([HANG] * 10)) as slow:
        for _ in range(10):
            await client.submit(telling(slow))
        await until(lambda: len(slow.received) == 10, "ten hanging deliveries")
        job_id = await client.submit(telling(receiver))
        await until(lambda: receiver.about(job_id), "the event of another receiver")


async def test_the_default_receiver_is_for_jobs_that_nobody_waits_for(
    make_stack: MakeStack, receiver: Receiver, redis: Redis
) -> None:
    stack = make_stack(**SETTINGS, webhook_url=receiver.url)
    async with Client(stack.api().url) as client, Receiver() as own:
        stack.worker()
        job_id = await client.submit(chat(tokens=2))
        elsewhere = await client.submit(telling(own))
        answer = await client.post("/v1/chat/completions", json=chat(tokens=2))
        assert answer.status_code == 200
        named = await client.post(
            "/v1/completions",
            json={"model": "simulated", "prompt": "a", "max_tokens": 1},
            headers={"X-Tailrace-Webhook-Url": own.url},
        )
        await until(lambda: len(receiver.received) == 1 and len(own.received) == 2, "the events")
        await outbox_is_empty(redis, stack)
        assert receiver.about(job_id)
        assert own.about(elsewhere)
        assert own.about(named.headers["x-job-id"])


BAD_URLS = [
    "ftp://example.com/",
    "/relative",
    "http://",
    "http://user:pass@example.com/",
    "http://10.0.0.1/",
    "http://[::1]:80/",
    "http://[::ffff:10.0.0.1]/",
    "http://169.254.169.254/latest",
    "http://a:b/",
    "http://a:99999/",
    "http://a/" + "x" * 3000,
]


@pytest.mark.parametrize("url", BAD_URLS)
async def test_a_url_that_cannot_be_called_is_refused_at_submit(sender: Client, url: str) -> None:
    response = await sender.post("/v1/jobs", json=chat(tailrace={"webhook_url": url}))
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == "tailrace.webhook_url"


async def test_without_a_secret_there_are_no_webhooks(client: Client) -> None:
    response = await client.post("/v1/jobs", json=chat(tailrace={"webhook_url": "https://example.com/"}))
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "tailrace.webhook_url"


async def test_a_name_that_leads_inside_is_refused_when_it_is_called(make_stack: MakeStack) -> None:
    stack = make_stack(**{**SETTINGS, "webhook_allowed_networks": ""})
    async with Client(stack.api().url) as client, Receiver() as receiver:
        stack.worker()
        await client.submit(chat(tokens=1, tailrace={"webhook_url": f"http://localhost:{receiver.port}/"}))
        line = "given up: localhost is "
        await until(lambda: line in stack.apis[0].log, "a refusal")
        await asyncio.sleep(0)
        assert not receiver.received
