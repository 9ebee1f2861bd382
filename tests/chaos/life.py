"""One job's life as its client sees it: submitted, read, perhaps cancelled or deleted, and its record at the end."""

import asyncio
import contextlib
import json
from collections.abc import Coroutine
from typing import Any

from websockets.exceptions import WebSocketException

from common.events import TERMINAL
from tests.chaos.door import AGAIN_CODES, SILENCE_SECONDS, TRANSPORT_ERRORS, Door, pause
from tests.chaos.ledger import Ledger
from tests.chaos.listener import DONE, CannotFollow, Listener
from tests.chaos.plan import Plan
from tests.chaos.readers import Broken, Reading

LIFE_SECONDS = 75.0
"""A job and its readers that take longer hang. Undisturbed, the longest takes two seconds."""
POLL_SECONDS = 0.1
HANG_UPS = 0.4
"""Share of submits with a key whose client first hangs up before it has the answer."""


class Life:
    def __init__(self, plan: Plan, door: Door, ledger: Ledger) -> None:
        self.listeners: list[Listener] = []
        self._plan = plan
        self._door = door
        self._ledger = ledger
        self._rng = plan.rng
        self._reading = Reading(plan, door, ledger)
        self._id: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def run(self) -> None:
        try:
            async with asyncio.timeout(LIFE_SECONDS):
                await self._run()
        except* TimeoutError:
            heard = ", ".join(f"{one.next} tokens, status {one.status}" for one in self.listeners)
            self._ledger.find("hung", f"{self._about} after {LIFE_SECONDS} s; readers: {heard}")
        except* Broken:
            pass  # noted

    @property
    def _about(self) -> str:
        plan = self._plan
        known = self._id.result() if self._id.done() else "not accepted"
        return f"job n={plan.n} ({plan.surface}, {plan.fate}, {plan.tokens} tokens, id {known})"

    async def _run(self) -> None:
        plan = self._plan
        leave_after = self._rng.randint(1, 30) if plan.fate == "abandon" else None
        tasks: list[Coroutine[Any, Any, None]] = [self._first(leave_after)]
        tasks += [self._further(i) for i in range(1, plan.readers)]
        if plan.fate in ("cancel", "delete"):
            tasks.append(self._interfere())
        async with asyncio.TaskGroup() as group:
            for task in tasks:
                group.create_task(task)
        if plan.fate in ("finish", "cling", "cancel"):
            await self._check_record()

    def _known(self, job_id: str) -> None:
        self._ledger.plans[job_id] = self._plan
        if not self._id.done():
            self._id.set_result(job_id)

    def _listener(self, name: str, job_id: str) -> Listener:
        listener = Listener(name, self._plan, job_id, self._ledger)
        self.listeners.append(listener)
        return listener

    async def _first(self, leave_after: int | None) -> None:
        """Submit, and be the first reader."""
        plan = self._plan
        if plan.surface == "chat":
            await self._chat(leave_after)
        elif plan.surface == "whole":
            await self._whole()
        elif plan.surface == "ws" and (not plan.keyed or plan.fate == "cling" or self._rng.random() < 0.5):
            await self._generate(leave_after)
        else:
            await self._submit()
            if plan.fate != "forget":
                await self._further(0)

    async def _further(self, i: int) -> None:
        """A reader that attaches to a known job, some time after it was accepted."""
        job_id = await self._id
        if i:
            await asyncio.sleep(self._rng.choice([0, self._rng.uniform(0, 2)]))
        listener = self._listener(f"reader {i}", job_id)
        if self._plan.surface == "ws" and i == 0:
            await self._reading.socket(listener)
        else:
            await self._reading.events(listener)

    async def _hang_up(self, path: str, body: dict[str, Any]) -> None:
        """Submit and leave before the answer: accepted or not, nobody knows; the key makes the repeat safe."""
        if not self._plan.keyed or self._plan.fate in ("abandon", "cling") or self._rng.random() > HANG_UPS:
            return
        with contextlib.suppress(TimeoutError, *TRANSPORT_ERRORS):
            async with asyncio.timeout(self._rng.uniform(0.001, 0.03)):
                await self._door.pod(self._rng).post(path, json=body, headers=self._key())
        self._ledger.counts["submits given up and repeated"] += 1

    async def _submit(self) -> None:
        await self._hang_up("/v1/jobs", self._plan.body)
        response = await self._door.call(self._rng, "POST", "/v1/jobs", json=self._plan.body, headers=self._key())
        if response.status_code not in (200, 202):
            self._ledger.find("lost", f"{self._about}: submit answered {response.status_code} {response.text}")
            raise Broken
        self._known(response.json()["id"])

    def _key(self) -> dict[str, str]:
        return {"Idempotency-Key": self._plan.idempotency_key} if self._plan.idempotency_key else {}

    async def _chat(self, leave_after: int | None) -> None:
        """A chat stream; once the job's id is known, a broken one is followed through the jobs API."""
        body = {**self._plan.body, "stream": True, "stream_options": {"include_usage": True}}
        listener: Listener | None = None
        await self._hang_up("/v1/chat/completions", body)
        while listener is None:
            try:
                pod = self._door.pod(self._rng)
                async with pod.stream("POST", "/v1/chat/completions", json=body, headers=self._key()) as response:
                    if response.status_code == 200:
                        self._known(response.headers["x-job-id"])
                        listener = self._listener("chat", response.headers["x-job-id"])
                        if await self._reading.sse(response, listener, leave_after, native=False):
                            return
                        continue
                    await response.aread()
                    if not self._door.refused(response):
                        code = response.json()["error"]["code"]
                        if self._plan.fate == "abandon" and code == "job_cancelled":
                            return  # an earlier try was accepted, and its reader left
                        self._ledger.find("lost", f"{self._about}: chat answered {response.status_code} {code}")
                        raise Broken
            except TRANSPORT_ERRORS:
                self._ledger.counts["streams that broke"] += 1
            except CannotFollow as refusal:
                assert listener is not None
                self._reading.refused(refusal.code, listener)
            await pause(self._rng)
        await self._reading.events(listener, leave_after)

    async def _whole(self) -> None:
        """A chat answer in one piece: asked for with a key, so that the next try finds the same answer."""
        await self._hang_up("/v1/chat/completions", self._plan.body)
        response = await self._door.call(
            self._rng, "POST", "/v1/chat/completions", json=self._plan.body, headers=self._key()
        )
        if response.status_code != 200:
            self._ledger.find("lost", f"{self._about}: chat answered {response.status_code} {response.text}")
            raise Broken
        self._known(response.headers["x-job-id"])
        self._listener("whole", response.headers["x-job-id"]).whole(response.json())

    async def _generate(self, leave_after: int | None) -> None:
        """Submit over a WebSocket; once the job's id is known, attach to it over others."""
        listener: Listener | None = None
        while listener is None:
            try:
                async with self._reading.connect() as ws:
                    key = {"idempotency_key": self._plan.idempotency_key} if self._plan.keyed else {}
                    await ws.send(json.dumps({"type": "generate", **key, **self._plan.body}))
                    first = json.loads(await asyncio.wait_for(ws.recv(), SILENCE_SECONDS))
                    if first["type"] == "error":
                        raise CannotFollow(first["error"]["code"])
                    self._known(first["id"])
                    listener = self._listener("socket", first["id"])
                    if await self._reading.messages(ws, listener, leave_after):
                        return
            except (WebSocketException, OSError, TimeoutError):
                self._ledger.counts["streams that broke"] += 1
            except CannotFollow as refusal:
                if listener:
                    self._reading.refused(refusal.code, listener)
                elif refusal.code not in AGAIN_CODES:
                    self._ledger.find("lost", f"{self._about}: socket told {refusal.code}")
                    raise Broken from None
            await pause(self._rng)
        await self._reading.socket(listener, leave_after)

    async def _interfere(self) -> None:
        """Cancel or delete at some time, through some pod."""
        path = f"/v1/jobs/{await self._id}"
        await asyncio.sleep(self._rng.uniform(0, 1.5))
        if self._plan.fate == "cancel":
            response = await self._door.call(self._rng, "POST", f"{path}/cancel")
            if response.status_code not in (200, 409):
                self._ledger.find("lost", f"{self._about}: cancel answered {response.status_code} {response.text}")
            return
        self._reading.deleting = True
        response = await self._door.call(self._rng, "DELETE", path)
        # 404: an earlier try was carried out, and its answer was lost.
        if response.status_code not in (200, 404):
            self._ledger.find("lost", f"{self._about}: delete answered {response.status_code} {response.text}")
        if (after := await self._door.call(self._rng, "GET", path)).status_code != 404:
            self._ledger.find("leaked", f"{self._about}: still there after its delete: {after.text}")

    async def _check_record(self) -> None:
        """The record over HTTP, once it is terminal, says what the readers heard."""
        while True:
            response = await self._door.call(self._rng, "GET", f"/v1/jobs/{self._id.result()}")
            if response.status_code != 200:
                self._ledger.find("lost", f"{self._about}: its record answered {response.status_code}")
                return
            record = response.json()
            if record["status"] in TERMINAL:
                break
            await asyncio.sleep(POLL_SECONDS)
        choices = (record["output"] or {}).get("choices") or [{"message": {"content": ""}}]
        text = choices[0]["message"]["content"]
        for listener in self.listeners:
            if text != "".join(self._plan.expected[: listener.next]):
                self._ledger.find("lost", f"{listener.name}: heard {listener.next} tokens, the record has {text!r}")
            if listener.status not in (record["status"], DONE):
                self._ledger.find("lost", f"{listener.name}: heard {listener.status}, the record {record['status']}")
