"""Any OpenAI-compatible server by URL: an existing `vllm serve`, SGLang, llama.cpp, Ollama.

While the upstream is away or full, jobs wait in their slot and try again; their own timeouts bound the wait. So a
restart of the upstream costs the backlog nothing. An answer that was cut in the middle cannot be continued.
"""

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any

import httpx

from common import events
from common.events import Event
from common.settings import Settings
from workers.engines.base import EngineDied, EngineFailed, EngineRefused, GenerationRequest, Resume
from workers.engines.chunk import delta_of, says_something

log = logging.getLogger(__name__)

CONNECT_SECONDS = 5.0
RETRY_SECONDS = (0.5, 1.0, 2.0, 5.0)
_PATHS = {"chat": "chat/completions", "completion": "completions"}
_ANSWERED_HERE = frozenset({"store", "metadata", "service_tier"})
"""What the queue and the record have seen to; an upstream that knows them would store the answer a second time."""
_DONE = "data: [DONE]"
_OUR_FAULT = frozenset({401, 403})  # our key, not the client's
_FULL_OR_AWAY = frozenset({429, 502, 503, 504})


class _TryAgain(Exception):
    """The upstream did not take the request; nothing has been generated."""


class OpenAIEngine:
    name = "openai"
    in_process = False
    max_prompt_chars: int | None = None

    def __init__(self, settings: Settings) -> None:
        self.model = settings.served_model_name or settings.model
        self.capacity = settings.upstream_slots
        self.max_model_len: int | None = None
        self._upstream_model = settings.model
        self._url = settings.upstream_url.rstrip("/")
        self._requests = 0
        key = settings.upstream_api_key.get_secret_value()
        self._client = httpx.AsyncClient(
            headers={"Authorization": f"Bearer {key}"} if key else None,
            # No read timeout: silence is judged by the job's first-token and stall timeouts.
            timeout=httpx.Timeout(None, connect=CONNECT_SECONDS),
            limits=httpx.Limits(max_connections=settings.upstream_slots, max_keepalive_connections=32),
        )

    async def start(self) -> None:
        """Asks the upstream for its models. Raises EngineDied when it does not answer, or not with the model."""
        if not self._url:
            raise EngineDied("TAILRACE_UPSTREAM_URL is not set")
        try:
            response = await self._client.get(f"{self._url}/models", timeout=CONNECT_SECONDS)
            response.raise_for_status()
            served = {model["id"]: model for model in response.json()["data"]}
        except (httpx.HTTPError, ValueError, KeyError) as error:
            raise EngineDied(f"{self._url}/models: {error or type(error).__name__}") from error
        if not self._upstream_model:
            self._upstream_model = next(iter(served), "")
        if self._upstream_model not in served:
            raise EngineDied(f"{self._url} does not serve {self._upstream_model!r}, only {sorted(served)}")
        self.model = self.model or self._upstream_model
        self.max_model_len = served[self._upstream_model].get("max_model_len")

    async def stop(self) -> None:
        await self._client.aclose()

    def resumable(self, request: GenerationRequest) -> bool:
        return False

    def running(self) -> int:
        return self._requests

    def healthy(self) -> bool:
        return True

    async def generate(self, request: GenerationRequest, resume: Resume | None = None) -> AsyncGenerator[Event]:
        body = {name: value for name, value in request.body.items() if name not in _ANSWERED_HERE}
        body |= {"model": self._upstream_model, "stream": True, "stream_options": {"include_usage": True}}
        tries = 0
        self._requests += 1
        try:
            while True:
                try:
                    async with aclosing(self._attempt(_PATHS[request.kind], body)) as said:
                        async for event in said:
                            yield event
                    return
                except _TryAgain as reason:
                    wait = RETRY_SECONDS[min(tries, len(RETRY_SECONDS) - 1)]
                    log.warning("job %s: upstream not ready (%s), again in %.1f s", request.job_id, reason, wait)
                tries += 1
                await asyncio.sleep(wait)
        finally:
            self._requests -= 1

    async def _attempt(self, path: str, body: dict[str, Any]) -> AsyncGenerator[Event]:
        begun = ended = False
        try:
            async with self._client.stream("POST", f"{self._url}/{path}", json=body) as response:
                if response.status_code != httpx.codes.OK:
                    await response.aread()
                    raise _refusal(response)
                async for line in _lines(response.aiter_bytes()):
                    ended = ended or line.startswith(_DONE)
                    for event in _events(line):
                        begun = True
                        yield event
        except httpx.RequestError as error:
            what = str(error) or type(error).__name__
            if begun:
                raise EngineFailed(f"the upstream broke off: {what}") from error
            raise _TryAgain(what) from error
        if not ended:
            raise EngineFailed("the upstream ended its stream without [DONE]")


async def _lines(chunks: AsyncIterator[bytes]) -> AsyncGenerator[str]:
    """Lines as SSE ends them. Not httpx's aiter_lines: it also splits at U+2028, which JSON may contain."""
    rest = b""
    async for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line.decode("utf-8", "replace").rstrip("\r")
    yield rest.decode("utf-8", "replace")


def _events(line: str) -> list[Event]:
    """The events of one SSE line; none for comments, blank lines and `[DONE]`."""
    if not line.startswith("data:") or line.startswith(_DONE):
        return []
    try:
        chunk = json.loads(line.removeprefix("data:"))
        if "\\ud" in line.lower():
            chunk = _whole_characters(chunk)
        error = chunk.get("error")
        deltas = [delta_of(choice) for choice in chunk.get("choices") or ()]
    except (ValueError, KeyError, AttributeError, TypeError) as cause:
        raise EngineFailed(f"the upstream sent no OpenAI chunk: {line[:200]!r}") from cause
    if error:
        raise EngineFailed(error.get("message", str(error)) if isinstance(error, dict) else str(error))
    said = [event for event in deltas if says_something(event)]
    if chunk.get("usage"):
        said.append(events.usage(chunk["usage"]))
    return said


def _whole_characters(chunk: Any) -> Any:
    """`chunk` with halves of surrogate pairs replaced: JSON can spell them, UTF-8 cannot."""
    text = json.dumps(chunk, ensure_ascii=False)
    return json.loads(text.encode("utf-16", "surrogatepass").decode("utf-16", "replace"))


def _refusal(response: httpx.Response) -> Exception:
    status = response.status_code
    if status in _FULL_OR_AWAY:
        return _TryAgain(f"status {status}")
    try:
        error = response.json()["error"]
        message, param, code = error["message"], error.get("param"), error.get("code")
    except (ValueError, KeyError, TypeError):
        message, param, code = response.text[:500] or f"status {status}", None, None
    if status >= 500 or status in _OUR_FAULT:
        return EngineFailed(f"the upstream failed: {message}")
    return EngineRefused(message, status=status, param=param, code=code if isinstance(code, str) else None)
