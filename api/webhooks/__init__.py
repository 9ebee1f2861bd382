"""Webhooks: somebody is told when a job has ended. See docs/webhooks.md.

The event is in Redis from the moment the job's record is terminal. Every pod looks for events that are due and sends
them, so it does not matter which pod took the request, or whether it still lives.
"""

import asyncio
import logging
import random

from api.metrics import Metrics
from api.webhooks.addresses import PARAM, AddressPolicy
from api.webhooks.outbox import Delivery, Outbox
from api.webhooks.sender import Outcome, Sender, event_type, place
from api.webhooks.signing import Signer
from common.connections import Client, is_outage
from common.errors import BadRequest
from common.keys import Keys
from common.settings import Settings
from common.tasks import cancel_all

log = logging.getLogger(__name__)

POLL_SECONDS = 0.5
SENDS_AT_ONCE = 32
LEASE_MARGIN_SECONDS = 5.0
"""A lease outlives the longest try by this, so that only a dead or stalled pod's deliveries are taken over."""
LONGEST_WAIT_SECONDS = 3600.0
STOP_SECONDS = 2.0


class Webhooks:
    """Checks who is to be told, at submit; and, in the background, tells them."""

    def __init__(self, settings: Settings, client: Client, keys: Keys, metrics: Metrics) -> None:
        """Raises ValueError for settings that cannot work."""
        signer, self._policy = Signer(settings.webhook_secrets.get_secret_value()), _policy(settings)
        self.on = bool(signer)
        if settings.webhook_url and not self.on:
            raise ValueError("TAILRACE_WEBHOOK_URL needs TAILRACE_WEBHOOK_SECRETS, to sign what is sent there")
        self._settings = settings
        self._metrics = metrics
        self._outbox = Outbox(client, keys, settings.webhook_timeout_seconds + LEASE_MARGIN_SECONDS)
        self._sender = Sender(signer, self._policy, settings.webhook_timeout_seconds)
        self._sending: set[asyncio.Task[None]] = set()

    def receiver(self, url: str | None, *, by_default: bool) -> str | None:
        """Who is to be told: `url`, or if there is none and `by_default` the deployment's own; None: nobody.

        Raises BadRequest for a URL that cannot be called.
        """
        if url is None:
            return self._settings.webhook_url or None if by_default else None
        if not self.on:
            raise BadRequest("Webhooks are off: this server has no secret to sign them with.", param=PARAM)
        self._policy.check_url(url)
        return url

    async def run(self) -> None:
        """Send what is due, for ever."""
        while True:
            try:
                more = await self._send_due()
            except Exception as error:
                more = False
                if not is_outage(error):
                    log.exception("webhooks: round failed")
            if not more:
                await asyncio.sleep(POLL_SECONDS * random.uniform(0.75, 1.25))

    async def stop(self) -> None:
        """Give sends under way a moment; those that are cut are sent again by another pod once their lease is over."""
        if self._sending:
            await asyncio.wait(self._sending, timeout=STOP_SECONDS)
        await cancel_all(self._sending)
        await self._sender.close()

    async def _send_due(self) -> bool:
        """Whether there may be more that is due than could be taken."""
        while len(self._sending) >= SENDS_AT_ONCE:
            await asyncio.wait(self._sending, return_when=asyncio.FIRST_COMPLETED)
        free = SENDS_AT_ONCE - len(self._sending)
        waiting, due = await self._outbox.claim(free)
        self._metrics.webhooks_waiting.set(waiting)
        for delivery in due:
            task = asyncio.create_task(self._deliver(delivery), name=f"webhook {delivery.subject}")
            self._sending.add(task)
            task.add_done_callback(self._sending.discard)
        return len(due) == free

    async def _deliver(self, delivery: Delivery) -> None:
        try:
            await self._settle(delivery, await self._try(delivery))
        except Exception as error:
            # The lease ends and the event is due again; if Redis is away, it is so once it is back.
            log.warning("webhook of %s: left to the next try: %r", delivery.subject, error)

    async def _try(self, delivery: Delivery) -> Outcome:
        if delivery.tries > self._settings.webhook_max_tries:
            return Outcome("its senders died", final=True)
        if await self._outbox.is_shut(delivery):
            return Outcome("it answered 410 before", final=True)
        return await self._sender.send(delivery)

    async def _settle(self, delivery: Delivery, outcome: Outcome) -> None:
        told = f"webhook {event_type(delivery)} of {delivery.subject} to {place(delivery.url)}, try {delivery.tries}"
        if outcome.problem is None:
            verdict, settled = "delivered", await self._outbox.delivered(delivery)
            log.info("%s: delivered%s", told, "" if settled else ", as before")
        elif outcome.final or delivery.tries >= self._settings.webhook_max_tries:
            if outcome.gone:
                await self._outbox.shut(delivery)
            verdict, settled = "given_up", await self._outbox.give_up(delivery)
            log.error("%s: given up: %s", told, outcome.problem)
        else:
            wait = max(self._backoff(delivery.tries), min(outcome.wait, LONGEST_WAIT_SECONDS))
            verdict, settled = "failed", await self._outbox.retry(delivery, wait)
            log.warning("%s: failed, again in %.1f s: %s", told, wait, outcome.problem)
        self._metrics.webhooks.labels(verdict).inc()

    def _backoff(self, tries: int) -> float:
        """Seconds after the failed try number `tries`: threefold each time, with jitter, so that crowds disperse."""
        wait = min(self._settings.webhook_retry_seconds * 3.0 ** (tries - 1), LONGEST_WAIT_SECONDS)
        return wait * random.uniform(0.8, 1.2)


def _policy(settings: Settings) -> AddressPolicy:
    try:
        policy = AddressPolicy(settings.webhook_allowed_networks)
    except ValueError as error:
        raise ValueError(f"TAILRACE_WEBHOOK_ALLOWED_NETWORKS: {error}") from error
    if settings.webhook_url:
        try:
            policy.check_url(settings.webhook_url)
        except BadRequest as error:
            raise ValueError(f"TAILRACE_WEBHOOK_URL: {error.message}") from error
    return policy
