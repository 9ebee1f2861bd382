"""One try: POST the signed event, and say what came of it."""

import asyncio
import time
from dataclasses import dataclass

import httpcore
import httpx
from pydantic_core import to_json

from api.webhooks.addresses import AddressPolicy, AddressRefused, GuardedBackend
from api.webhooks.outbox import Delivery
from api.webhooks.signing import Signer

_GONE = 410
_KINDS = {"resp": "response", "batch": "batch"}
_FAILURES = (httpcore.NetworkError, httpcore.TimeoutException, httpcore.ProtocolError, OSError)


@dataclass(frozen=True, slots=True)
class Outcome:
    """`problem` is None when the receiver has the event. `final`: no further try. `wait`: seconds it asked for."""

    problem: str | None = None
    final: bool = False
    gone: bool = False
    wait: float = 0.0


class Sender:
    """httpcore and not httpx: no proxies from the environment, no redirects, no cookies, and our own connecting."""

    def __init__(self, signer: Signer, policy: AddressPolicy, timeout_seconds: float) -> None:
        self._signer = signer
        self._timeout = timeout_seconds
        self._connections = httpcore.AsyncConnectionPool(
            ssl_context=httpx.create_ssl_context(),
            # Whoever calls bounds them. httpcore's own bound of 10 would let a few receivers that hang fail all others.
            max_connections=None,
            max_keepalive_connections=0,
            network_backend=GuardedBackend(policy),
        )

    async def send(self, delivery: Delivery) -> Outcome:
        """Never raises for what the receiver or the network does."""
        try:
            async with asyncio.timeout(self._timeout):
                return await self._post(delivery)
        except AddressRefused as error:
            return Outcome(str(error), final=True)
        except TimeoutError:
            return Outcome(f"no answer in {self._timeout:g} s")
        except _FAILURES as error:
            return Outcome(f"{type(error).__name__}: {error}")

    async def close(self) -> None:
        await self._connections.aclose()

    async def _post(self, delivery: Delivery) -> Outcome:
        """Only the status line and headers are read: a receiver cannot make the pod take megabytes."""
        url, body, event_id = httpx.URL(delivery.url), payload(delivery), event_id_of(delivery.subject)
        plain = {"Host": url.netloc.decode(), "Content-Type": "application/json", "User-Agent": "Tailrace"}
        headers = httpx.Headers({**plain, **self._signer.headers(event_id, int(time.time()), body)}).raw
        target = httpcore.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path)
        async with self._connections.stream("POST", target, headers=headers, content=body) as response:
            return _judged(response)


def payload(delivery: Delivery) -> bytes:
    """The event in OpenAI's shape: thin, it says only whose state to look at."""
    return to_json(
        {
            "id": event_id_of(delivery.subject),
            "object": "event",
            "created_at": delivery.created_at,
            "type": event_type(delivery),
            "data": {"id": delivery.subject},
        }
    )


def event_type(delivery: Delivery) -> str:
    """`response.*` for jobs of the Responses API, `batch.*` for batches, `job.*` for all other jobs."""
    surface, _, _ = delivery.subject.partition("_")
    return f"{_KINDS.get(surface, 'job')}.{delivery.status}"


def event_id_of(subject: str) -> str:
    """The same for every try. A job ends once, so the random part of its id will do."""
    return "evt_" + subject.replace("-", "_").rpartition("_")[2]


def place(url: str) -> str:
    """The part of a receiver's URL that may be logged: path and query often hold its secrets."""
    parsed = httpx.URL(url)
    return f"{parsed.scheme}://{parsed.netloc.decode()}"


def _judged(response: httpcore.Response) -> Outcome:
    status = response.status
    if 200 <= status < 300:
        return Outcome()
    if status == _GONE:
        return Outcome("HTTP 410, it wants no more", final=True, gone=True)
    return Outcome(f"HTTP {status}", wait=_retry_after(response))


def _retry_after(response: httpcore.Response) -> float:
    """In seconds; 0 when there is none, or a date."""
    value = httpx.Headers(response.headers).get("retry-after", "")
    return float(value) if value.isascii() and value.isdigit() and len(value) < 9 else 0.0
