"""The outbox: events whose receivers have not said yet that they have them.

scripts/finish.lua puts an event here in the same step that ends the job. Any pod takes those that are due, each under
a lease, and settles them; what a dead pod held is due again when its lease ends.
"""

from dataclasses import dataclass

from common import scripts
from common.connections import Client
from common.keys import Keys

GONE_SECONDS = 3600
"""How long a receiver that answered 410 is left alone."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """The end of `subject`, a job of `owner`'s, for `url`. `tries` counts this one; `created_at` is unix time."""

    subject: str
    tries: int
    url: str
    owner: str
    status: str
    created_at: int


class Outbox:
    def __init__(self, client: Client, keys: Keys, lease_seconds: float) -> None:
        self._client = client
        self._keys = keys
        self._lease_ms = int(lease_seconds * 1000)

    async def claim(self, count: int) -> tuple[int, list[Delivery]]:
        """How many events are in the outbox, and up to `count` that are due, now leased to the caller."""
        args = [count, self._lease_ms, self._keys.webhook_prefix]
        waiting, claimed = await scripts.webhook_claim(self._client, [self._keys.webhooks], args)
        return waiting, [
            Delivery(
                subject.decode(), int(tries), url.decode(), owner.decode(), status.decode(), int(created_ms) // 1000
            )
            for subject, tries, url, owner, status, created_ms in claimed
        ]

    async def delivered(self, delivery: Delivery) -> bool:
        """The receiver has it: nobody sends it again. False when somebody else had said so already."""
        return await self._settle(delivery, "delivered")

    async def give_up(self, delivery: Delivery) -> bool:
        """Nobody sends it again. False, and nothing happens, when somebody else holds it by now."""
        return await self._settle(delivery, "given_up")

    async def retry(self, delivery: Delivery, seconds: float) -> bool:
        """Due again in `seconds`. False, and nothing happens, when somebody else holds it by now."""
        return await self._settle(delivery, "retry", int(seconds * 1000))

    async def shut(self, delivery: Delivery) -> None:
        """The receiver wants no more of this owner's events; those of others still go there."""
        await self._client.set(self._keys.webhook_gone(delivery.owner, delivery.url), 1, ex=GONE_SECONDS)

    async def is_shut(self, delivery: Delivery) -> bool:
        return bool(await self._client.exists(self._keys.webhook_gone(delivery.owner, delivery.url)))

    async def _settle(self, delivery: Delivery, verdict: str, delay_ms: int = 0) -> bool:
        keys = [self._keys.webhooks, self._keys.webhook(delivery.subject)]
        return bool(
            await scripts.webhook_settle(self._client, keys, [delivery.subject, delivery.tries, verdict, delay_ms])
        )
