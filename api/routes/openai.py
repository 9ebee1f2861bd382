"""`/v1/chat/completions`, `/v1/completions`, `/v1/models`: OpenAI's endpoints, each request a job."""

import asyncio
from typing import Any, Literal

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from api.attachment import Attachment
from api.bodies import read_json
from api.follow import Said
from api.pod import Pod
from api.sse import JobStream
from api.submit import Accepted, submit
from api.views import make_view, whole
from api.waiting import ClientGone, unless_gone
from common.aggregate import Aggregate
from common.connections import translated
from common.errors import Unavailable, from_event
from common.events import DELTA, END

router = APIRouter(prefix="/v1")

CLIENT_CLOSED_REQUEST = 499
"""nginx's status for a client that left; nobody sees it but the access log."""


@router.post("/chat/completions")
async def chat_completions(request: Request) -> Response:
    return await _complete(request, "chat")


@router.post("/completions")
async def completions(request: Request) -> Response:
    return await _complete(request, "completion")


@router.get("/models")
async def models(request: Request) -> dict[str, Any]:
    pod: Pod = request.app.state.pod
    pod.keyring.owner(request)
    with translated():
        await pod.models.refresh()
    served = {worker.model: worker for worker in pod.models.workers}
    return {
        "object": "list",
        "data": [
            {
                "id": worker.model,
                "object": "model",
                "created": int(worker.started_at),
                "owned_by": "tailrace",
                "engine": worker.engine,
                "max_model_len": worker.max_model_len,
            }
            for worker in served.values()
        ],
    }


async def _complete(request: Request, kind: Literal["chat", "completion"]) -> Response:
    pod: Pod = request.app.state.pod
    owner = pod.keyring.owner(request)
    raw = await read_json(request, pod.settings.max_body_bytes)
    accepted = await submit(pod, kind, raw, owner, request.headers, on_disconnect="cancel")
    attachment = Attachment(pod, accepted.record)
    try:
        await attachment.open()
        if accepted.body.stream:
            return await _stream(request, pod, accepted, attachment)
        response = await _whole(request, accepted, attachment)
    except ClientGone:
        response = Response(status_code=CLIENT_CLOSED_REQUEST)
    except BaseException:
        attachment.close()
        raise
    attachment.close()
    return response


async def _stream(request: Request, pod: Pod, accepted: Accepted, attachment: Attachment) -> Response:
    """The response begins with the first token, or after a while, so that an early failure is a real HTTP status."""
    first = attachment.begin()
    await unless_gone(request, first, pod.settings.first_event_wait_seconds)
    if first.done():
        _raise_early_failure(first.result())
    include_usage = accepted.body.stream_options is not None and accepted.body.stream_options.include_usage
    view = make_view(accepted.record.kind, accepted.record, include_usage=include_usage)
    return JobStream(pod, attachment, view)


async def _whole(request: Request, accepted: Accepted, attachment: Attachment) -> Response:
    answer = Aggregate()

    async def read() -> None:
        while said := await attachment.next():
            for _, event in said:
                answer.add(event)

    reading = asyncio.ensure_future(read())
    try:
        await unless_gone(request, reading)
        reading.result()
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
    if answer.end is None:
        raise Unavailable("This pod is shutting down.", code="shutting_down", retry_after=1)
    if error := answer.end.get("error"):
        raise from_event(error)
    return JSONResponse(whole(accepted.record, answer.result()), headers={"X-Job-Id": accepted.record.id})


def _raise_early_failure(said: Said) -> None:
    if not said:
        raise Unavailable("This pod is shutting down.", code="shutting_down", retry_after=1)
    last = said[-1][1]
    delivered = any(event["type"] == DELTA for _, event in said)
    if last["type"] == END and not delivered and (error := last.get("error")):
        raise from_event(error)
