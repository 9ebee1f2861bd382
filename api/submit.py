"""From a request to an accepted job."""

import hashlib
import json
import logging
from dataclasses import dataclass, replace
from typing import Any, Literal

from starlette.datastructures import Headers

from api.bodies import Body, generation_body, job_kind, parse_body, prompt_chars
from api.pod import Pod
from common.connections import translated
from common.errors import BadRequest
from common.records import JobRecord, JobRequest, Kind, OnDisconnect, new_job_id

log = logging.getLogger(__name__)

Surface = Literal["chat", "completion", "response", "job", "ws"]


@dataclass(frozen=True, slots=True)
class Accepted:
    record: JobRecord
    body: Body
    created: bool


async def submit(
    pod: Pod,
    surface: Surface,
    raw: dict[str, Any],
    owner: str,
    headers: Headers | None = None,
    *,
    key: str | None = None,
    on_disconnect: OnDisconnect,
    response: dict[str, Any] | None = None,
) -> Accepted:
    """Check and enqueue `raw`, or find the job that its idempotency key names: `key`, or that of `headers`.

    Raises any TailraceError; nothing is enqueued then. `on_disconnect` is the surface's default;
    `response` is kept with the job (see JobRequest).
    """
    pod.accept_work()
    kind: Kind = surface if surface in ("chat", "completion") else job_kind(raw)
    body = parse_body(kind, raw, headers)
    options = body.options(on_disconnect)
    told = pod.webhooks.receiver(options.webhook_url, by_default=options.on_disconnect == "continue")
    options = replace(options, webhook_url=told)
    key = key or idempotency_key(headers)
    with translated():
        await pod.models.check(body.model, prompt_chars(raw), can_wait=options.on_disconnect == "continue")
        job_id = new_job_id("job" if surface == "ws" else surface)
        request = JobRequest(job_id, kind, body.model, owner, generation_body(raw), options, response)
        submitted = await pod.jobs.submit(
            request, idempotency_key=key, fingerprint=_fingerprint(kind, raw, response) if key else ""
        )
    record = submitted.record
    if submitted.created:
        pod.metrics.submitted.labels(surface).inc()
        log.info("job %s: accepted for model %s from %s over %s", record.id, body.model, owner, surface)
    else:
        log.info("job %s: found again by its idempotency key", record.id)
    return Accepted(record, body, submitted.created)


def idempotency_key(headers: Headers | None) -> str | None:
    """Raises BadRequest for one that is empty or too long."""
    return checked_key(headers.get("idempotency-key") if headers else None, "Idempotency-Key")


def checked_key(key: Any, param: str) -> str | None:
    """`key`, if it can be an idempotency key. Raises BadRequest naming `param`."""
    if key is not None and not (isinstance(key, str) and 0 < len(key) <= 255):
        raise BadRequest(f"{param} must have 1 to 255 characters.", param=param)
    return key


def _fingerprint(kind: Kind, raw: dict[str, Any], response: dict[str, Any] | None) -> str:
    what = [kind, *(_asked(part) for part in (raw, response) if part is not None)]
    return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()


def _asked(request: dict[str, Any]) -> dict[str, Any]:
    """How the answer is transported may differ between the tries; what is asked for may not."""
    return {name: value for name, value in request.items() if name not in ("stream", "stream_options")}
