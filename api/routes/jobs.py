"""`/v1/jobs`: submit now, attach later, from anywhere, any number of times."""

from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request
from starlette.responses import JSONResponse, Response

from api.attachment import Attachment
from api.bodies import read_json
from api.owned import forget, owned_job, settled_job
from api.pod import Pod
from api.presence import cancel
from api.sse import JobStream, parse_cursor
from api.steer import steer
from api.submit import submit
from api.views import make_view, whole
from api.views.chunks import wire_error
from api.views.responses import ResponsesView
from common.connections import translated
from common.errors import Conflict
from common.eventlog import Gap
from common.events import END, START, EventId
from common.records import JobRecord

router = APIRouter(prefix="/v1/jobs")


@router.post("")
async def create(request: Request) -> Response:
    pod: Pod = request.app.state.pod
    owner = pod.keyring.owner(request)
    raw = await read_json(request, pod.settings.max_body_bytes)
    accepted = await submit(pod, "job", raw, owner, request.headers, on_disconnect="continue")
    record = accepted.record
    return JSONResponse(
        await job_json(pod, record),
        status_code=202 if accepted.created else 200,
        headers={"Location": f"/v1/jobs/{record.id}", "X-Job-Id": record.id},
    )


@router.get("/{job_id}")
async def retrieve(request: Request, job_id: str) -> dict[str, Any]:
    pod: Pod = request.app.state.pod
    record = await settled_job(pod, job_id, pod.keyring.owner(request))
    with translated():
        return await job_json(pod, record)


@router.get("/{job_id}/events")
async def events(
    request: Request,
    job_id: str,
    view: str = "native",
    after: Annotated[str | None, Query()] = None,
    last_event_id: Annotated[str | None, Header()] = None,
) -> Response:
    """`Last-Event-ID` wins over `?after=`: a browser's EventSource keeps the URL and sends the header on reconnects."""
    pod: Pod = request.app.state.pod
    record = await owned_job(pod, job_id, pod.keyring.owner(request))
    cursor = parse_cursor(last_event_id, "Last-Event-ID") if last_event_id else parse_cursor(after, "after")
    pod.accept_work()
    rendering = make_view(view, record)
    attachment = Attachment(pod, record, cursor.id)
    await attachment.open()
    try:
        if isinstance(rendering, ResponsesView):
            await _bring_to(pod, rendering, record, cursor.id)
    except BaseException:
        attachment.close()
        raise
    return JobStream(pod, attachment, rendering, cursor.skip)


@router.post("/{job_id}/cancel")
async def cancel_job(request: Request, job_id: str) -> dict[str, Any]:
    """Idempotent: cancelling a cancelled job answers the job. Any other ended job is a 409."""
    pod: Pod = request.app.state.pod
    owner = pod.keyring.owner(request)
    await owned_job(pod, job_id, owner)
    with translated():
        await cancel(pod.jobs, pod.ender, job_id, "cancelled_by_client")
    now = await settled_job(pod, job_id, owner)
    if now.state in ("completed", "incomplete", "failed"):
        raise Conflict(f"The job has already ended ({now.state}).", code="job_already_ended")
    return await job_json(pod, now)


@router.patch("/{job_id}")
async def steer_job(request: Request, job_id: str) -> dict[str, Any]:
    """Change generation parameters of a waiting or running job."""
    pod: Pod = request.app.state.pod
    owner = pod.keyring.owner(request)
    changes = await read_json(request, pod.settings.max_body_bytes)
    await steer(pod, await settled_job(pod, job_id, owner), changes)
    return await job_json(pod, await owned_job(pod, job_id, owner))


@router.delete("/{job_id}")
async def delete(request: Request, job_id: str) -> dict[str, Any]:
    """Cancels the job if it still waits or runs, and forgets it."""
    pod: Pod = request.app.state.pod
    record = await owned_job(pod, job_id, pod.keyring.owner(request))
    await forget(pod, record)
    return {"id": record.id, "object": "job.deleted", "deleted": True}


async def _bring_to(pod: Pod, view: ResponsesView, record: JobRecord, cursor: EventId) -> None:
    """Let a view with a memory hear what is before the cursor; the end is always told again."""
    if cursor == START:
        return
    try:
        with translated():
            for id, event in await pod.eventlog.read_all(record.id):
                if id <= cursor and event["type"] != END:
                    view.hear(event)
    except Gap as gap:
        raise Conflict("Events before the cursor are no longer in the stream.", code="stream_trimmed") from gap


async def job_json(pod: Pod, record: JobRecord) -> dict[str, Any]:
    """The job record as clients see it."""
    position = None
    if record.state == "queued":
        with translated():
            position = await pod.jobs.queue_position(record)
    return {
        "id": record.id,
        "object": "job",
        "status": record.state,
        "model": record.model,
        "metadata": record.body.get("metadata"),
        "user": record.body.get("user"),
        "priority": record.options.priority,
        "attempt": record.attempt,
        "worker": record.worker,
        "queue_position": position,
        "created_at": record.created_at,
        "started_at": record.started_at,
        "first_token_at": record.first_token_at,
        "finished_at": record.finished_at,
        "expires_at": record.expires_at,
        "resumable_until": _resumable_until(pod, record),
        "finish_reason": record.finish_reason,
        "usage": record.usage,
        "error": wire_error(record.error) if record.error else None,
        "output": whole(record, record.result) if record.result else None,
    }


def _resumable_until(pod: Pod, record: JobRecord) -> float | None:
    """End of the window in which the stream can be resumed event by event; None while the job lives."""
    return record.finished_at + pod.settings.stream_ttl_seconds if record.finished_at else None
