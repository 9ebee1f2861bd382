"""`/v1/responses`: OpenAI's Responses API, each response a job. What it means is in docs/openai.md."""

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request
from starlette.responses import JSONResponse, Response

from api.answers import answer
from api.attachment import Attachment
from api.bodies import read_json
from api.owned import forget, until_ended
from api.pages import page
from api.pod import Pod
from api.presence import cancel
from api.responses.body import ResponseBody, parse_response_body
from api.responses.input import input_items
from api.responses.machine import whole
from api.responses.objects import STATUS, unfinished
from api.responses.stored import asked, stored_response
from api.responses.stream import ResponseStream, window
from api.responses.translate import rename
from api.submit import submit
from common.aggregate import Aggregate
from common.connections import translated
from common.errors import BadRequest, TailraceError
from common.records import JobRecord

router = APIRouter(prefix="/v1/responses")

CANCEL_SECONDS = 10.0
"""How long the answer to a cancel waits for the worker to have cancelled. Later, it will still be heard."""


@router.post("")
async def create(request: Request) -> Response:
    pod: Pod = request.app.state.pod
    owner = pod.keyring.owner(request)
    body = parse_response_body(await read_json(request, pod.settings.max_body_bytes))
    try:
        record = await _submit(request, pod, body, owner)
        if not body.background:
            return await _answer(request, pod, body, record)
    except TailraceError as error:
        rename(error)
        raise
    if body.stream:
        # At once, without waiting for the first token: the response exists, and its stream can be resumed.
        return await _stream(pod, record)
    return JSONResponse(_object(record), headers={"X-Job-Id": record.id, **window(pod)})


@router.get("/{response_id}")
async def retrieve(
    request: Request,
    response_id: str,
    stream: bool = False,
    starting_after: Annotated[int | None, Query(ge=0)] = None,
    include_obfuscation: bool = False,
) -> Response:
    """The response as it is, or its events after number `starting_after`, and those that are still to come."""
    pod: Pod = request.app.state.pod
    record = await stored_response(pod, response_id, pod.keyring.owner(request))
    _refuse_unknown(request, {"stream", "starting_after", "include_obfuscation"})
    if include_obfuscation:
        raise BadRequest("Events are not padded.", code="unsupported_parameter", param="include_obfuscation")
    if not stream:
        if starting_after is not None:
            raise BadRequest("'starting_after' has a meaning only with 'stream=true'.", param="starting_after")
        return JSONResponse(_object(record))
    _check_streamable(record)
    return await _stream(pod, record, -1 if starting_after is None else starting_after)


@router.post("/{response_id}/cancel")
async def cancel_response(request: Request, response_id: str) -> dict[str, Any]:
    """Idempotent: cancelling a cancelled response answers it."""
    pod: Pod = request.app.state.pod
    owner = pod.keyring.owner(request)
    record = await stored_response(pod, response_id, owner)
    if not _echo(record)["background"]:
        raise BadRequest("Cannot cancel a synchronous response.")
    with translated():
        await cancel(pod.jobs, pod.ender, record.id, "cancelled_by_client")
        await until_ended(pod, record.id, CANCEL_SECONDS)
    record = await stored_response(pod, response_id, owner)  # it may have been deleted meanwhile
    if record.state in ("completed", "incomplete", "failed"):
        raise BadRequest(f"Cannot cancel {'an' if record.state[0] == 'i' else 'a'} {record.state} response.")
    return _object(record)


@router.delete("/{response_id}")
async def delete(request: Request, response_id: str) -> dict[str, Any]:
    """Cancels the response if it has not ended, and forgets it."""
    pod: Pod = request.app.state.pod
    record = await stored_response(pod, response_id, pod.keyring.owner(request))
    await forget(pod, record)
    return {"id": record.id, "object": "response", "deleted": True}


@router.get("/{response_id}/input_items")
async def list_input_items(
    request: Request,
    response_id: str,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
    order: Literal["asc", "desc"] = "desc",
    after: str | None = None,
) -> dict[str, Any]:
    """The items that this response's own request brought; those before are with the previous response."""
    pod: Pod = request.app.state.pod
    record = await stored_response(pod, response_id, pod.keyring.owner(request))
    _refuse_unknown(request, {"limit", "order", "after"})
    return page(input_items(record), limit, order, after)


async def _submit(request: Request, pod: Pod, body: ResponseBody, owner: str) -> JobRecord:
    chat, kept = await asked(pod, body, owner)
    if body.background and request.headers.get("x-tailrace-on-disconnect") == "cancel":
        raise BadRequest("A background response has no reader to wait for.", param="X-Tailrace-On-Disconnect")
    on_disconnect: Literal["cancel", "continue"] = "continue" if body.background else "cancel"
    accepted = await submit(
        pod,
        "response",
        chat,
        owner,
        request.headers,
        on_disconnect=on_disconnect,
        response=kept,
    )
    return accepted.record


async def _answer(request: Request, pod: Pod, body: ResponseBody, record: JobRecord) -> Response:
    """The answer to a request that waits for it."""

    def ended(told: Aggregate) -> dict[str, Any]:
        assert told.end is not None
        return whole(record, told.result(), told.end)

    streamed = (lambda attachment: ResponseStream(pod, attachment)) if body.stream else None
    return await answer(request, pod, record, streamed=streamed, whole=ended)


async def _stream(pod: Pod, record: JobRecord, after: int = -1) -> Response:
    """The stream of a background response; with every replay, the state machine begins at the log's start."""
    pod.accept_work()
    attachment = Attachment(pod, record)
    await attachment.open()
    try:
        stream = ResponseStream(pod, attachment, after)
    except BaseException:
        attachment.close()
        raise
    stream.headers.update(window(pod))
    return stream


def _check_streamable(record: JobRecord) -> None:
    assert record.response is not None
    for condition, name in ((_echo(record)["background"], "background"), (record.response["stream"], "stream")):
        if not condition:
            raise BadRequest(
                f"This response cannot be streamed because it was not created with {name}=true.", param="stream"
            )


def _object(record: JobRecord) -> dict[str, Any]:
    if record.terminal:
        return whole(record, record.result or {}, record.end_event())
    return unfinished(record, STATUS.get(record.state, record.state))


def _echo(record: JobRecord) -> dict[str, Any]:
    assert record.response is not None
    echo: dict[str, Any] = record.response["echo"]
    return echo


def _refuse_unknown(request: Request, known: set[str]) -> None:
    for name in request.query_params:
        if name not in known:
            raise BadRequest(f"Unknown parameter: {name[:200]!r}.", code="unknown_parameter", param=name[:200])
