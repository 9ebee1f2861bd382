"""Reading a batch: JSON Lines in OpenAI's batch format, each checked before any is enqueued."""

import asyncio
import hashlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictStr, ValidationError
from starlette.requests import Request

from api.bodies import bad_request, generation_body, parse_body, parse_json, prompt_chars
from api.pod import Pod
from api.responses.body import parse_response_body
from api.responses.stored import asked
from api.responses.translate import rename
from common.batches import Draft
from common.errors import BadRequest, TailraceError, TooLarge
from common.records import JobRequest, Kind, new_job_id

ENDPOINTS: dict[str, Literal["chat", "completion", "response"]] = {
    "/v1/chat/completions": "chat",
    "/v1/completions": "completion",
    "/v1/responses": "response",
}
_HEADERS = ("x-tailrace-priority", "x-tailrace-deadline-seconds")
"""Apply to every line that does not say otherwise itself. The other headers are the batch's, or make no sense here."""


class Line(BaseModel):
    """One line of the input. The body is checked as by the endpoint that `url` names."""

    model_config = ConfigDict(extra="forbid")

    custom_id: Annotated[StrictStr, Field(min_length=1, max_length=256)]
    method: Literal["POST"]
    url: StrictStr
    body: dict[str, Any]


@dataclass
class Reading:
    """What has been read of a batch: `draft` with its lines, the SHA-256 of its bytes."""

    pod: Pod
    owner: str
    headers: dict[str, str]
    draft: Draft
    digest: Any = field(default_factory=hashlib.sha256)
    _number: int = 0
    _seen: set[str] = field(default_factory=set)
    _longest: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Per model: characters of its longest prompt, and the number of that line."""

    async def read(self, request: Request) -> None:
        """Raises BadRequest or NotFound naming the line and the parameter, TooLarge beyond the settings' limits."""
        settings = self.pod.settings
        async for data in _lines(request, settings.batch_max_bytes, settings.max_body_bytes):
            self._number += 1
            self.digest.update(data + b"\n")
            if not data.strip():
                continue
            if len(self.draft) == self.pod.batches.most_lines:
                raise TooLarge(f"The batch has more than {len(self.draft)} lines.")
            try:
                await self._add(data)
            except TailraceError as error:
                raise _in_line(self._number, error) from error
        if not len(self.draft):
            raise BadRequest("The batch has no lines.", code="invalid_json")
        for model, (chars, number) in self._longest.items():
            try:
                await self.pod.models.check(model, chars, can_wait=True)
            except TailraceError as error:
                raise _in_line(number, error) from error

    async def _add(self, data: bytes) -> None:
        try:
            line = Line.model_validate(parse_json(data))
        except ValidationError as error:
            raise bad_request(error) from error
        if line.custom_id in self._seen:
            raise BadRequest(f"custom_id: {line.custom_id!r} is in the batch already.", param="custom_id")
        if line.url not in ENDPOINTS:
            raise BadRequest(f"url: one of {', '.join(ENDPOINTS)} is expected.", param="url")
        self._seen.add(line.custom_id)
        surface = ENDPOINTS[line.url]
        try:
            request = await self._response(line.body) if surface == "response" else self._request(surface, line.body)
        except BadRequest as error:
            raise BadRequest(error.message, code=error.code, param=f"body.{error.param}") from error
        await self.draft.add(line.custom_id, request)

    async def _response(self, raw: dict[str, Any]) -> JobRequest:
        body = parse_response_body(raw)
        if body.background:
            raise BadRequest("background: nobody waits for a line of a batch anyway.", param="background")
        chat, kept = await asked(self.pod, body, self.owner)
        try:
            return self._request("chat", chat, kept)
        except BadRequest as error:
            rename(error)
            raise

    def _request(self, kind: Kind, raw: dict[str, Any], response: dict[str, Any] | None = None) -> JobRequest:
        body = parse_body(kind, raw, self.headers)
        if body.stream:
            raise BadRequest("stream: the answers of a batch are read as a whole.", param="stream")
        told = self.pod.webhooks.receiver(body.tailrace.webhook_url, by_default=False)
        options = replace(body.options("continue"), on_disconnect="continue", webhook_url=told)
        chars = prompt_chars(raw)
        if chars >= self._longest.get(body.model, (-1, 0))[0]:
            self._longest[body.model] = (chars, self._number)
        job_id = new_job_id("response" if response else kind)
        return JobRequest(job_id, kind, body.model, self.owner, generation_body(raw), options, response)


def reading(pod: Pod, owner: str, request: Request) -> Reading:
    headers = {name: request.headers[name] for name in _HEADERS if name in request.headers}
    return Reading(pod, owner, headers, pod.batches.draft(owner))


async def _lines(request: Request, limit: int, line_limit: int) -> AsyncIterator[bytes]:
    """Lines without their ends. Raises TooLarge when there are more than `limit` bytes, or `line_limit` in one line."""
    rest, size = b"", 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > limit:
            raise TooLarge(f"The batch is larger than {limit} bytes.")
        *whole, rest = (rest + chunk).split(b"\n")
        # Checked while it grows: each chunk copies the line so far, and a line is held in memory.
        if max(map(len, (rest, *whole))) > line_limit:
            raise TooLarge(f"A line of the batch is larger than {line_limit} bytes.")
        for line in whole:
            yield line
        # Thousands of lines take a while to check; what this pod streams meanwhile must not wait for all of them.
        await asyncio.sleep(0)
    yield rest


def _in_line(number: int, error: TailraceError) -> TailraceError:
    return type(error)(
        f"Line {number}: {error.message}",
        code=error.code,
        param=f"line {number}: {error.param}" if error.param else f"line {number}",
        retry_after=error.retry_after,
    )
