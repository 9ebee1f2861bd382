"""Request bodies: the cheap checks that a pod makes. Every other parameter is the engine's to judge.

Fields that are not named here pass through untouched.
"""

import json
from dataclasses import replace
from typing import Annotated, Any, Literal

import msgpack
from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt, StrictStr, ValidationError
from starlette.requests import Request

from common.errors import BadRequest, TooLarge
from common.records import Kind, Options

TRANSPORT_FIELDS = ("model", "stream", "stream_options", "tailrace")
"""Not part of what is generated: they do not reach the engine."""

UNSUPPORTED = {
    "audio": "only text is generated",
    "functions": "it is OpenAI's deprecated name; use 'tools'",
    "function_call": "it is OpenAI's deprecated name; use 'tool_choice'",
    "moderation": "nothing here moderates",
    "web_search_options": "nothing here searches the web",
}
"""OpenAI's parameters that no engine's answer could honour here: a 400 instead of silence."""

TIER_PRIORITY = {"auto": 0, "default": 0, "scale": 0, "flex": -30, "priority": 30, "fast": 30}
"""`service_tier` as a place in the queue: by default 30 steps are 300 s of waiting, half of the longest wait."""

ServiceTier = Literal["auto", "default", "flex", "scale", "priority", "fast"]
Seconds = Annotated[float, Field(gt=0, le=30 * 86_400)]
Metadata = Annotated[
    dict[Annotated[StrictStr, Field(max_length=64)], Annotated[StrictStr, Field(max_length=512)]],
    Field(max_length=16),
]
"""OpenAI's limits."""


class Extension(BaseModel):
    """The object `tailrace` in a body: how the job is treated. Durations in seconds."""

    model_config = ConfigDict(extra="forbid")

    on_disconnect: Literal["cancel", "continue"] | None = None
    grace_seconds: Annotated[float, Field(ge=0, le=86_400)] = 0.0
    deadline_seconds: Seconds | None = None
    queue_timeout_seconds: Seconds | None = None
    ttft_timeout_seconds: Seconds | None = None
    stall_timeout_seconds: Seconds | None = None
    priority: Annotated[StrictInt, Field(ge=-100, le=100)] = 0
    webhook_url: Annotated[StrictStr, Field(max_length=2048)] | None = None

    def options(self, default: Literal["cancel", "continue"]) -> Options:
        return Options(**{**self.model_dump(), "on_disconnect": self.on_disconnect or default})


_HEADERS = {
    "x-tailrace-on-disconnect": "on_disconnect",
    "x-tailrace-grace-seconds": "grace_seconds",
    "x-tailrace-deadline-seconds": "deadline_seconds",
    "x-tailrace-priority": "priority",
    "x-tailrace-webhook-url": "webhook_url",
}


class StreamOptions(BaseModel):
    """Only what a view can do: it has no memory, so no running totals, and it pads nothing."""

    model_config = ConfigDict(extra="forbid")

    include_usage: StrictBool | None = None
    include_obfuscation: Literal[False] | None = None
    continuous_usage_stats: Literal[False] | None = None


class Body(BaseModel):
    """What chat and text completions share."""

    model_config = ConfigDict(extra="allow")

    model: Annotated[StrictStr, Field(min_length=1, max_length=256)]
    stream: StrictBool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: Annotated[StrictInt, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[StrictInt, Field(ge=1)] | None = None
    n: Annotated[StrictInt, Field(ge=1, le=128)] | None = None
    temperature: Annotated[float, Field(strict=True, ge=0)] | None = None
    top_p: Annotated[float, Field(strict=True, gt=0, le=1)] | None = None
    presence_penalty: Annotated[float, Field(strict=True, ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(strict=True, ge=-2, le=2)] | None = None
    seed: StrictInt | None = None
    stop: StrictStr | list[StrictStr] | None = None
    metadata: Metadata | None = None
    user: StrictStr | None = None
    service_tier: ServiceTier | None = None
    tailrace: Extension = Extension()

    def options(self, default: Literal["cancel", "continue"]) -> Options:
        """How the job is treated; a `tailrace.priority` wins over the service tier."""
        options = self.tailrace.options(default)
        if "priority" in self.tailrace.model_fields_set or self.service_tier is None:
            return options
        return replace(options, priority=TIER_PRIORITY[self.service_tier])


class Message(BaseModel):
    model_config = ConfigDict(extra="allow")

    role: Annotated[StrictStr, Field(min_length=1)]


class ChatBody(Body):
    messages: Annotated[list[Message], Field(min_length=1)]
    modalities: list[Literal["text"]] | None = None
    store: StrictBool | None = None


class CompletionBody(Body):
    prompt: StrictStr | Annotated[list[StrictStr | StrictInt | list[StrictInt]], Field(min_length=1)]


_BODIES: dict[Kind, type[Body]] = {"chat": ChatBody, "completion": CompletionBody}


def parse_body(kind: Kind, raw: dict[str, Any], headers: Any = None) -> Body:
    """Check `raw` for `kind`; headers `X-Tailrace-*` fill in what the body's `tailrace` object leaves out.

    Raises BadRequest naming the parameter.
    """
    for name, why in UNSUPPORTED.items():
        if raw.get(name) is not None:
            raise BadRequest(f"{name!r} is not supported: {why}.", code="unsupported_parameter", param=name)
    given = {field: headers[name] for name, field in _HEADERS.items() if headers and name in headers}
    if "priority" in given:
        try:
            given["priority"] = int(given["priority"])
        except ValueError:
            raise BadRequest("X-Tailrace-Priority must be an integer.", param="X-Tailrace-Priority") from None
    if given and isinstance(raw.get("tailrace", {}), dict):
        raw = {**raw, "tailrace": {**given, **raw.get("tailrace", {})}}
    try:
        body = _BODIES[kind].model_validate(raw)
    except ValidationError as error:
        raise bad_request(error) from error
    if body.stream_options and not body.stream:
        raise BadRequest("'stream_options' has a meaning only with 'stream': true.", param="stream_options")
    return body


def job_kind(raw: dict[str, Any]) -> Kind:
    """Which of the two bodies `raw` is. Raises BadRequest when it is neither or both."""
    if ("messages" in raw) == ("prompt" in raw):
        raise BadRequest("Give either 'messages' (a chat) or 'prompt' (a completion).", param="messages")
    return "chat" if "messages" in raw else "completion"


def generation_body(raw: dict[str, Any]) -> dict[str, Any]:
    """`raw` without what does not concern the engine."""
    return {name: value for name, value in raw.items() if name not in TRANSPORT_FIELDS}


def prompt_chars(raw: dict[str, Any]) -> int:
    """Characters of text in the (longest) prompt, to be checked against a model's context; 0 if it will be cut."""
    if raw.get("truncate_prompt_tokens") is not None:
        return 0
    if "messages" in raw:
        return _chars(raw["messages"])
    prompt = raw.get("prompt")
    return max((_chars(one) for one in prompt), default=0) if isinstance(prompt, list) else _chars(prompt)


async def read_json(request: Request, limit: int) -> dict[str, Any]:
    """The body as a JSON object. Raises TooLarge before reading more than `limit` bytes, BadRequest otherwise."""
    data = bytearray()
    async for chunk in request.stream():
        data += chunk
        if len(data) > limit:
            raise TooLarge(f"The body is larger than {limit} bytes.")
    return parse_json(bytes(data))


def parse_json(data: bytes | str) -> dict[str, Any]:
    try:
        # NaN and Infinity are not JSON, and would be refused by every strict reader of the result.
        raw = json.loads(data, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"Not valid JSON: {error}.", code="invalid_json") from error
    if not isinstance(raw, dict):
        raise BadRequest("A JSON object is expected.", code="invalid_json")
    try:
        msgpack.packb(raw)
    except (ValueError, OverflowError) as error:
        # JSON can spell what cannot be stored: half a surrogate pair, integers beyond 64 bits, endless nesting.
        raise BadRequest(f"The JSON holds a value that cannot be stored: {error}.", code="invalid_json") from error
    return raw


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _chars(part: Any) -> int:
    if isinstance(part, str):
        return len(part)
    if isinstance(part, list):
        return sum(_chars(item) for item in part)
    if isinstance(part, dict):
        return _chars(part.get("content")) + _chars(part.get("text"))
    return 0


def bad_request(error: ValidationError) -> BadRequest:
    """The first problem as our error, naming the parameter."""
    first = error.errors()[0]
    # A union reports each of its branches with the branch's name in the path; the parameter comes before it.
    inner = ("list[", "constrained-", "function-", "[key]")
    path = [str(part) for part in first["loc"] if not str(part).startswith(inner)]
    # Cut, because a key of the client's may be any length.
    param = ".".join(part for part in path if part not in ("str", "int", "float"))[:200] or None
    return BadRequest(f"{param or 'body'}: {first['msg']}", param=param)
