"""The job record: what Redis keeps about a job besides its event log."""

import secrets
from dataclasses import dataclass, field, fields
from typing import Any, Literal, TypeVar

import msgpack

from common.events import TERMINAL, Event, end

T = TypeVar("T")

Kind = Literal["chat", "completion"]
OnDisconnect = Literal["cancel", "continue"]

STEER_FIELD = "steer:"
"""Prefix of the record's fields that override parameters of the request (scripts/steer.lua)."""

ID_PREFIX: dict[str, str] = {"chat": "chatcmpl-", "completion": "cmpl-", "response": "resp_", "job": "job-"}


def new_job_id(surface: Literal["chat", "completion", "response", "job"]) -> str:
    """Never reused: 128 random bits behind the prefix clients of that surface expect."""
    return ID_PREFIX[surface] + secrets.token_hex(16)


@dataclass(frozen=True, slots=True)
class Options:
    """How a job is treated, as against what it generates. Durations in seconds; None: the setting's value."""

    on_disconnect: OnDisconnect = "continue"
    grace_seconds: float = 0.0
    priority: int = 0
    deadline_seconds: float | None = None
    queue_timeout_seconds: float | None = None
    ttft_timeout_seconds: float | None = None
    stall_timeout_seconds: float | None = None
    webhook_url: str | None = None
    """Who is told of the end (scripts/finish.lua); None: nobody."""


@dataclass(frozen=True, slots=True)
class JobRequest:
    """A job to be submitted. `body` is the OpenAI body without transport fields and the `tailrace` object.

    `response`: what the Responses API must know of a request of its own besides the chat that it became
    (api/responses); no engine looks at it.
    """

    id: str
    kind: Kind
    model: str
    owner: str
    body: dict[str, Any]
    options: Options = field(default_factory=Options)
    response: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class JobRecord:
    """A job as Redis has it. Times are unix seconds with fractions, None while they have not come."""

    id: str
    state: str
    model: str
    kind: Kind
    owner: str
    attempt: int
    losses: int
    worker: str | None
    body: dict[str, Any]
    options: Options
    response: dict[str, Any] | None
    created_at: float
    deadline_at: float | None
    started_at: float | None
    first_token_at: float | None
    finished_at: float | None
    expires_at: float | None
    finish_reason: str | None
    usage: dict[str, Any] | None
    error: dict[str, Any] | None
    timings: dict[str, Any] | None
    result: dict[str, Any] | None
    deleted: bool
    steered: int
    """How often its parameters were changed; `body` has the changes."""

    @property
    def terminal(self) -> bool:
        return self.state in TERMINAL

    def end_event(self) -> Event:
        """The end of a terminal job's log, for readers of a log that has expired or lost it."""
        return end(
            self.state, finish_reason=self.finish_reason, usage=self.usage, error=self.error, timings=self.timings
        )


def request_fields(request: JobRequest) -> list[Any]:
    """Field, value, field, value... for the submit script."""
    options = {name: getattr(request.options, name) for name in Options.__slots__}
    response = ["response", msgpack.packb(request.response)] if request.response is not None else []
    return [
        "kind", request.kind,
        "model", request.model,
        "owner", request.owner,
        "request", msgpack.packb(request.body),
        "options", msgpack.packb(options),
        *response,
    ]  # fmt: skip


def result_fields(result: dict[str, Any], end_event: dict[str, Any], first_token_at: float | None = None) -> list[Any]:
    """Field, value, ... for the finish script, from the aggregated result and the end event."""
    flat: list[Any] = ["result", msgpack.packb(result)]
    for name in ("usage", "error", "timings"):
        if end_event.get(name) is not None:
            flat += [name, msgpack.packb(end_event[name])]
    if end_event.get("finish_reason"):
        flat += ["finish_reason", end_event["finish_reason"]]
    if first_token_at is not None:
        flat += ["first_token_ms", int(first_token_at * 1000)]
    return flat


def parse_record(job_id: str, raw: dict[bytes, bytes]) -> JobRecord:
    """The inverse of the scripts' HSETs; `raw` is what HGETALL replies."""
    return JobRecord(
        id=job_id,
        state=raw[b"state"].decode(),
        model=raw[b"model"].decode(),
        kind=raw[b"kind"].decode(),  # type: ignore[arg-type]
        owner=raw[b"owner"].decode(),
        attempt=int(raw[b"attempt"]),
        losses=int(raw[b"losses"]),
        worker=_text(raw.get(b"worker")),
        body={**msgpack.unpackb(raw[b"request"]), **_overrides(raw)},
        options=known_fields(Options, msgpack.unpackb(raw[b"options"])),
        response=_packed(raw.get(b"response")),
        created_at=int(raw[b"created_ms"]) / 1000,
        deadline_at=_seconds(raw.get(b"deadline_ms")),
        started_at=_seconds(raw.get(b"started_ms")),
        first_token_at=_seconds(raw.get(b"first_token_ms")),
        finished_at=_seconds(raw.get(b"finished_ms")),
        expires_at=_seconds(raw.get(b"expires_ms")),
        finish_reason=_text(raw.get(b"finish_reason")),
        usage=_packed(raw.get(b"usage")),
        error=_packed(raw.get(b"error")),
        timings=_packed(raw.get(b"timings")),
        result=_packed(raw.get(b"result")),
        deleted=b"deleted" in raw,
        steered=int(raw.get(b"steered", 0)),
    )


def known_fields(cls: type[T], values: dict[str, Any]) -> T:
    """An instance of the dataclass `cls`; fields that only a newer version knows are left out (rolling upgrades)."""
    known = {field.name for field in fields(cls)}  # type: ignore[arg-type]
    return cls(**{name: value for name, value in values.items() if name in known})


def _overrides(raw: dict[bytes, bytes]) -> dict[str, Any]:
    prefix = STEER_FIELD.encode()
    steered = {name.removeprefix(prefix).decode(): raw[name] for name in raw if name.startswith(prefix)}
    return {name: msgpack.unpackb(value) for name, value in steered.items()}


def _text(value: bytes | None) -> str | None:
    return value.decode() if value else None


def _seconds(value: bytes | None) -> float | None:
    return int(value) / 1000 if value and value != b"0" else None


def _packed(value: bytes | None) -> dict[str, Any] | None:
    return msgpack.unpackb(value) if value else None
