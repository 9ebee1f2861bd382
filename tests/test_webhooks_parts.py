"""The parts of webhooks: where they may go, what is signed, and the outbox on a real Redis."""

import asyncio
import base64
import ipaddress
import socket
from collections import Counter
from typing import Any

import httpcore
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai import OpenAI
from openai.types.webhooks import ResponseCompletedWebhookEvent
from redis.asyncio import Redis

from api.webhooks import SENDS_AT_ONCE
from api.webhooks.addresses import AddressPolicy, AddressRefused, GuardedBackend
from api.webhooks.outbox import Delivery, Outbox
from api.webhooks.sender import Sender, payload, place
from api.webhooks.signing import Signer
from common.jobs import JobStore
from common.records import JobRequest, Options, new_job_id
from common.settings import Settings
from common.tasks import cancel_all
from tests.support.receiver import HANG, Receiver
from tests.support.wait import until

MODEL = "m"
URL = "https://receiver.example/hook"
SECRET = "whsec_" + base64.b64encode(bytes(range(32))).decode()

REFUSED = """0.0.0.0 10.1.2.3 100.64.0.1 127.0.0.1 127.255.255.254 169.254.169.254 172.16.0.1 172.31.255.255 192.0.0.1
    192.0.0.8 192.0.2.1 192.88.99.1 192.168.1.1 198.18.0.1 198.51.100.1 203.0.113.1 224.0.0.1 239.255.255.255 240.0.0.1
    255.255.255.255 :: ::1 ::7f00:1 ::ffff:127.0.0.1 ::ffff:10.0.0.1 64:ff9b::7f00:1 64:ff9b::a00:1 64:ff9b:1::1 100::1
    2001::1 2001:db8::1 2002:7f00:1:: 2002:a00:1:: fc00::1 fd12:3456::1 fe80::1 fe80::1%1 fec0::1 ff02::1 ff0e::1
    168.63.129.16"""
PERMITTED = "1.1.1.1 8.8.8.8 172.15.0.1 172.32.0.1 192.167.0.1 2606:4700::1111 2a00::1 ::ffff:8.8.8.8 64:ff9b::808:808"


@pytest.mark.parametrize("address", REFUSED.split())
def test_addresses_that_are_not_public_are_refused(address: str) -> None:
    assert not AddressPolicy().permits(address)


@pytest.mark.parametrize("address", PERMITTED.split())
def test_public_addresses_are_permitted(address: str) -> None:
    assert AddressPolicy().permits(address)


@given(st.ip_addresses(v=4))
def test_an_ipv4_address_in_ipv6_clothes_is_judged_as_itself(address: ipaddress.IPv4Address) -> None:
    policy = AddressPolicy("10.0.0.0/8")
    expected = policy.permits(str(address))
    assert policy.permits(f"::ffff:{address}") == expected
    assert policy.permits(str(ipaddress.IPv6Address("64:ff9b::") + int(address))) == expected
    assert not AddressPolicy().permits(f"::{address}")


@given(st.ip_addresses())
def test_nothing_is_permitted_that_python_calls_private(address: Any) -> None:
    if AddressPolicy().permits(str(address)) and not getattr(address, "ipv4_mapped", None):
        assert not address.is_private
        assert not address.is_loopback
        assert not address.is_link_local
        assert not address.is_multicast
        assert not address.is_unspecified


def test_networks_of_ones_own_can_be_permitted() -> None:
    policy = AddressPolicy("10.0.0.0/8, fd00::/8")
    assert policy.permits("10.255.0.1")
    assert policy.permits("::ffff:10.255.0.1")
    assert policy.permits("fd00::1")
    assert not policy.permits("192.168.0.1")
    with pytest.raises(ValueError):
        AddressPolicy("10.0.0.1/8")


@pytest.mark.parametrize(
    "answers", [["127.0.0.1"], ["8.8.8.8", "127.0.0.1"], ["8.8.8.8", "::ffff:169.254.169.254"]], ids=str
)
async def test_one_bad_address_refuses_the_host(monkeypatch: pytest.MonkeyPatch, answers: list[str]) -> None:
    resolve_to(monkeypatch, answers)
    with pytest.raises(AddressRefused):
        await GuardedBackend(AddressPolicy()).connect_tcp("rebinding.example", 80)


async def test_the_connection_goes_to_the_address_that_was_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The name is resolved once. TLS and Host still name the host, so certificates are checked against it."""
    asked = resolve_to(monkeypatch, ["8.8.8.8"], ["127.0.0.1"])
    backend = GuardedBackend(AddressPolicy())
    connected: list[str] = []

    async def connect_tcp(host: str, *_: Any) -> httpcore.AsyncNetworkStream:
        connected.append(host)
        return stream

    stream = Tls()
    monkeypatch.setattr(backend._plain, "connect_tcp", connect_tcp)
    async with httpcore.AsyncConnectionPool(network_backend=backend) as pool:
        response = await pool.request("POST", "https://rebinding.example/hook")
    assert response.status == 204
    assert (connected, len(asked)) == (["8.8.8.8"], 1)
    assert stream.server_hostname == "rebinding.example"


class Tls(httpcore.AsyncMockStream):
    def __init__(self) -> None:
        super().__init__([b"HTTP/1.1 204 No Content\r\n\r\n"])
        self.server_hostname: str | None = None

    async def start_tls(self, ssl_context: Any, server_hostname: str | None = None, timeout: Any = None) -> "Tls":
        self.server_hostname = server_hostname
        return self


def resolve_to(monkeypatch: pytest.MonkeyPatch, *answers: list[str]) -> list[str]:
    """Let names resolve to the next of `answers`; returns the list of names that were asked for."""
    asked: list[str] = []
    rest = iter(answers)

    async def getaddrinfo(host: str, port: int, **_: Any) -> list[Any]:
        asked.append(host)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in next(rest)]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo)
    return asked


async def test_a_name_that_does_not_resolve_is_an_outcome_and_no_crash() -> None:
    sender = Sender(Signer(SECRET), AddressPolicy(), 5)
    for host in ("x.invalid", "a" * 70 + ".example"):
        outcome = await sender.send(Delivery("job-1", 1, f"http://{host}/", "me", "completed", 0))
        assert outcome.problem
        assert not outcome.final
    await sender.close()


async def test_receivers_that_hang_do_not_hold_up_the_others() -> None:
    sender = Sender(Signer(SECRET), AddressPolicy("127.0.0.0/8"), 60)
    async with Receiver(iter([HANG] * SENDS_AT_ONCE)) as receiver:
        deliveries = [Delivery(f"job-{n}", 1, receiver.url, "me", "completed", 0) for n in range(SENDS_AT_ONCE + 1)]
        hanging = [asyncio.create_task(sender.send(delivery)) for delivery in deliveries[:-1]]
        await until(lambda: len(receiver.received) == SENDS_AT_ONCE, "all that hang are being sent")
        assert (await sender.send(deliveries[-1])).problem is None
        await cancel_all(hanging)
    await sender.close()


def test_openai_reads_the_end_of_a_response() -> None:
    delivery = Delivery("resp_0123", 1, URL, "me", "completed", 1_700_000_000)
    body = payload(delivery)
    headers = Signer(SECRET).headers("evt_0123", 1_700_000_000, body)
    webhooks = OpenAI(api_key="none", webhook_secret=SECRET).webhooks
    webhooks.verify_signature(body, headers, tolerance=10**10)
    event = ResponseCompletedWebhookEvent.model_validate_json(body)
    assert (event.id, event.data.id, event.created_at) == ("evt_0123", "resp_0123", 1_700_000_000)


@pytest.mark.parametrize("secret", ["abc", "whsec_", "whsec_!!!", "whsec_c2hvcnQ=", SECRET.removeprefix("whsec_")])
def test_a_secret_that_is_none_is_refused_without_being_shown(secret: str) -> None:
    with pytest.raises(ValueError) as caught:
        Signer(f"{SECRET},{secret}")
    assert secret not in str(caught.value) or secret == "whsec_"


def test_what_may_be_secret_in_a_url_is_not_part_of_its_place() -> None:
    assert place("https://receiver.example:8443/path/secret?token=x#y") == "https://receiver.example:8443"


@pytest.fixture
def store(control: Redis, settings: Settings) -> JobStore:
    return JobStore(control, settings)


@pytest.fixture
def outbox(control: Redis, store: JobStore) -> Outbox:
    return Outbox(control, store.keys, lease_seconds=60)


@pytest.fixture
def lapsing(control: Redis, store: JobStore) -> Outbox:
    """Leases are over at once."""
    return Outbox(control, store.keys, lease_seconds=0)


async def ended(store: JobStore, url: str | None = URL) -> str:
    request = JobRequest(new_job_id("job"), "chat", MODEL, "alice", {}, Options(webhook_url=url))
    await store.submit(request)
    await store.claim(MODEL, "w", 1)
    assert await store.finish(request.id, MODEL, "w", 1, "completed", [])
    return request.id


async def test_an_end_that_is_reported_twice_is_one_event(store: JobStore, outbox: Outbox) -> None:
    job_id = await ended(store)
    assert await store.finish(job_id, MODEL, "w", 1, "completed", [])
    assert not await store.finish(job_id, MODEL, "other", 1, "failed", [])
    waiting, [delivery] = await outbox.claim(10)
    assert (waiting, delivery.subject, delivery.status, delivery.url, delivery.tries) == (
        1,
        job_id,
        "completed",
        URL,
        1,
    )
    assert await outbox.delivered(delivery)
    assert await outbox.claim(10) == (0, [])


async def test_no_receiver_no_event(store: JobStore, outbox: Outbox) -> None:
    await ended(store, url=None)
    assert await outbox.claim(10) == (0, [])


async def test_each_event_is_claimed_by_one_pod(store: JobStore, outbox: Outbox) -> None:
    jobs = {await ended(store) for _ in range(30)}
    rounds = await asyncio.gather(*(outbox.claim(7) for _ in range(20)))
    claimed = Counter(delivery.subject for _, deliveries in rounds for delivery in deliveries)
    assert claimed == Counter(jobs)


async def test_what_a_dead_pod_held_is_due_again(store: JobStore, lapsing: Outbox) -> None:
    await ended(store)
    _, [first] = await lapsing.claim(1)
    _, [second] = await lapsing.claim(1)
    assert (first.tries, second.tries) == (1, 2)


async def test_a_failure_is_heard_only_from_the_latest_try(store: JobStore, lapsing: Outbox) -> None:
    await ended(store)
    _, [stale] = await lapsing.claim(1)
    _, [current] = await lapsing.claim(1)
    assert not await lapsing.retry(stale, 3600)
    assert not await lapsing.give_up(stale)
    assert await lapsing.retry(current, 3600)
    assert await lapsing.claim(1) == (1, [])


async def test_a_late_success_counts(store: JobStore, lapsing: Outbox) -> None:
    """The receiver has it, so nobody may send it again, whoever holds the lease now."""
    await ended(store)
    _, [stale] = await lapsing.claim(1)
    _, [current] = await lapsing.claim(1)
    assert await lapsing.delivered(stale)
    assert not await lapsing.retry(current, 0)
    assert not await lapsing.delivered(current)
    assert await lapsing.claim(1) == (0, [])
