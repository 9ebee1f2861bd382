"""A client that reads job streams and checks every token of the simulated engine."""

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import httpx

from workers.engines.simulated import expected_text, prompt_text

MODEL = "simulated"


def chat(prompt: str = "hello", tokens: int = 8, **more: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": [{"role": "user", "content": prompt}], "max_tokens": tokens, **more}


def answer_to(body: dict[str, Any], tokens: int | None = None) -> str:
    """The whole text that the simulated engine gives to `body`."""
    kind = "chat" if "messages" in body else "completion"
    return expected_text(prompt_text(kind, body), body.get("seed") or 0, tokens or body["max_tokens"])


@dataclass
class SseEvent:
    data: str
    id: str | None = None
    event: str | None = None

    @property
    def json(self) -> Any:
        return json.loads(self.data)


async def lines(response: httpx.Response) -> AsyncIterator[str]:
    """Lines as SSE ends them; httpx's aiter_lines also splits at U+2028, which JSON may contain."""
    rest = b""
    async for chunk in response.aiter_bytes():
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            yield line.decode().rstrip("\r")


async def sse_events(response: httpx.Response) -> AsyncIterator[SseEvent]:
    """The events of a stream as the SSE standard reads them; comments are dropped."""
    fields: dict[str, str] = {}
    async for line in lines(response):
        if line.startswith(":"):
            continue
        if line:
            name, _, value = line.partition(":")
            fields[name] = value.removeprefix(" ")
        elif fields:
            if "data" in fields:
                yield SseEvent(fields["data"], fields.get("id"), fields.get("event"))
            fields = {}


@dataclass
class Heard:
    """What one reader got, over any number of connections."""

    text: str = ""
    last_id: str | None = None
    ids: list[str] = field(default_factory=list)
    end: dict[str, Any] | None = None
    statuses: list[dict[str, Any]] = field(default_factory=list)
    started: list[dict[str, Any]] = field(default_factory=list)
    ends: int = 0

    def take(self, event: SseEvent) -> None:
        """One event of the native view."""
        if event.id is not None:
            self.last_id = event.id
            self.ids.append(event.id)
        if event.event == "delta":
            self.text += event.json.get("content", "")
        elif event.event == "end":
            self.end = event.json
            self.ends += 1
        elif event.event == "started":
            self.started.append(event.json)
        elif event.event == "status":
            self.statuses.append(event.json)
        elif event.event == "error":
            raise AssertionError(f"error event: {event.data}")


class Client(httpx.AsyncClient):
    """An HTTP client of one pod."""

    def __init__(self, url: str, **options: Any) -> None:
        super().__init__(base_url=url, timeout=60, **options)

    async def submit(self, body: dict[str, Any], **options: Any) -> str:
        response = await self.post("/v1/jobs", json=body, **options)
        assert response.status_code in (200, 202), response.text
        job_id: str = response.json()["id"]
        return job_id

    async def job(self, job_id: str) -> dict[str, Any]:
        response = await self.get(f"/v1/jobs/{job_id}")
        assert response.status_code == 200, response.text
        record: dict[str, Any] = response.json()
        return record

    async def read(
        self, job_id: str, heard: Heard | None = None, stop_after: int | None = None, **params: Any
    ) -> Heard:
        """Read the native view to its end, or until `stop_after` deltas came and the connection is cut."""
        heard = heard or Heard()
        headers = {"Last-Event-ID": heard.last_id} if heard.last_id else {}
        deltas = 0
        async with self.stream("GET", f"/v1/jobs/{job_id}/events", headers=headers, params=params) as response:
            if response.status_code != 200:
                await response.aread()
            assert response.status_code == 200, response.text
            async for event in sse_events(response):
                heard.take(event)
                deltas += event.event == "delta"
                if stop_after is not None and deltas >= stop_after:
                    break
        return heard

    async def metric(self, name: str) -> float:
        """Sum over the labels of one metric."""
        text = (await self.get("/metrics")).text
        return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(name))


async def chat_stream(client: httpx.AsyncClient, body: dict[str, Any], path: str = "/v1/chat/completions") -> str:
    """The text of a streamed chat; fails on an error frame or a missing [DONE]."""
    text, done = "", False
    async with client.stream("POST", path, json={**body, "stream": True}) as response:
        if response.status_code != 200:
            await response.aread()
        assert response.status_code == 200, response.text
        async for event in sse_events(response):
            if event.data == "[DONE]":
                done = True
                break
            chunk = event.json
            assert "error" not in chunk, chunk
            for choice in chunk["choices"]:
                text += choice["delta"].get("content") or ""
    assert done
    return text
