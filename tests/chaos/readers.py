"""Reading a job to its end over whatever connections it takes. Each loop is one protocol."""

import asyncio
import json
from contextlib import aclosing

import httpx
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import WebSocketException

from tests.chaos.door import AGAIN_CODES, SILENCE_SECONDS, TRANSPORT_ERRORS, Door, pause
from tests.chaos.ledger import Ledger
from tests.chaos.listener import CannotFollow, Listener
from tests.chaos.plan import Plan
from tests.support.client import sse_events

CUTS = 0.4
"""Share of connections that the reader itself cuts."""
GONE_CODES = {"job_not_found", "stream_trimmed", "stream_expired"}


class Broken(Exception):
    """The reader cannot go on, and that has been noted."""


class Reading:
    """How one job's readers read. `leave_after`: go for good after so many events."""

    def __init__(self, plan: Plan, door: Door, ledger: Ledger) -> None:
        self.deleting = False
        """From the moment somebody may have deleted the job: readers may be told that it is gone."""
        self._plan = plan
        self._door = door
        self._ledger = ledger
        self._rng = plan.rng

    async def events(self, listener: Listener, leave_after: int | None = None) -> None:
        """Server-Sent Events of the jobs API, in the native or the chat view."""
        while not listener.ended:
            params, headers = {"view": self._view(listener)}, {}
            if listener.last_id and self._rng.random() < 0.5:
                headers["Last-Event-ID"] = listener.last_id
            elif listener.last_id:
                params["after"] = listener.last_id
            path = f"/v1/jobs/{listener.job_id}/events"
            try:
                pod = self._door.pod(self._rng)
                async with pod.stream("GET", path, headers=headers, params=params) as response:
                    if await self._open(response, listener) and await self.sse(
                        response, listener, leave_after, native=params["view"] == "native"
                    ):
                        return
            except TRANSPORT_ERRORS:
                self._ledger.counts["streams that broke"] += 1
            except CannotFollow as refusal:
                self.refused(refusal.code, listener)
            if not listener.ended:
                await pause(self._rng)

    async def sse(
        self, response: httpx.Response, listener: Listener, leave_after: int | None = None, *, native: bool
    ) -> bool:
        """Read one connection. True when the reader leaves for good; else it was cut, by whomever, or has ended."""
        cut_after = self._cut()
        heard = 0
        async with aclosing(sse_events(response)) as events:  # type: ignore[type-var]
            async for event in events:
                listener.native(event) if native else listener.chat(event)
                heard += 1
                # Not after the end: what a pod says after it is to be heard.
                if not listener.ended:
                    if leave_after is not None and heard >= leave_after:
                        return True
                    if cut_after is not None and heard >= cut_after:
                        self._ledger.counts["streams cut by readers"] += 1
                        return False
        return False

    async def socket(self, listener: Listener, leave_after: int | None = None) -> None:
        """WebSocket: attach, and attach again."""
        while not listener.ended:
            try:
                async with self.connect() as ws:
                    after = {"after": listener.last_id} if listener.last_id else {}
                    await ws.send(json.dumps({"type": "attach", "id": listener.job_id, **after}))
                    if await self.messages(ws, listener, leave_after):
                        return
            except (WebSocketException, OSError, TimeoutError):
                self._ledger.counts["streams that broke"] += 1
            except CannotFollow as refusal:
                self.refused(refusal.code, listener)
            if not listener.ended:
                await pause(self._rng)

    async def messages(self, ws: ClientConnection, listener: Listener, leave_after: int | None = None) -> bool:
        """As `sse`."""
        cut_after = self._cut()
        heard = 0
        while not listener.ended:
            listener.socket(json.loads(await asyncio.wait_for(ws.recv(), SILENCE_SECONDS)))
            heard += 1
            if leave_after is not None and heard >= leave_after:
                return True
            if cut_after is not None and heard >= cut_after:
                self._ledger.counts["streams cut by readers"] += 1
                return False
        return False

    def connect(self) -> connect:
        url = self._rng.choice(self._door.urls).replace("http", "ws") + "/v1/ws"
        return connect(url, open_timeout=3, close_timeout=1, ping_interval=None, proxy=None)

    def _view(self, listener: Listener) -> str:
        # A cursor with a part belongs to the chat view, which gave it.
        if listener.last_id and "." in listener.last_id:
            return "chat"
        return "chat" if self._plan.surface == "chat" and self._rng.random() < 0.7 else "native"

    def _cut(self) -> int | None:
        return self._rng.randint(1, 40) if self._rng.random() < CUTS else None

    async def _open(self, response: httpx.Response, listener: Listener) -> bool:
        if response.status_code == 200:
            return True
        await response.aread()
        if not self._door.refused(response):
            self.refused(response.json()["error"]["code"], listener)
        return False

    def refused(self, code: str, listener: Listener) -> None:
        """Return to try again, or note that there is nothing to try."""
        if code in AGAIN_CODES:
            return
        if code in GONE_CODES and self.deleting:
            listener.gone = True
            return
        self._ledger.find("lost", f"{listener.name}: told {code} at {listener.last_id}")
        raise Broken(code)
