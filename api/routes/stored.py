"""`/v1/chat/completions/{id}`: completions that were made with `"store": true`, as long as their job's record lives.

There is no list of them, and their metadata does not change: neither could be had from records that are found by
their id alone.
"""

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request

from api.owned import forget, settled
from api.pages import page
from api.pod import Pod
from api.views import whole
from common.connections import translated
from common.errors import NotFound
from common.records import JobRecord

router = APIRouter(prefix="/v1/chat/completions/{completion_id}")


@router.get("")
async def retrieve(request: Request, completion_id: str) -> dict[str, Any]:
    record = await _stored(request, completion_id)
    assert record.result is not None
    return {"metadata": {}, **whole(record, record.result)}


@router.get("/messages")
async def messages(
    request: Request,
    completion_id: str,
    after: str | None = None,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
    order: Literal["asc", "desc"] = "asc",
) -> dict[str, Any]:
    """The messages of the request, `limit` of them after the one with id `after`."""
    record = await _stored(request, completion_id)
    said = [_message(record, index, message) for index, message in enumerate(record.body["messages"])]
    return page(said, limit, order, after)


@router.delete("")
async def delete(request: Request, completion_id: str) -> dict[str, Any]:
    record = await _stored(request, completion_id)
    await forget(request.app.state.pod, record)
    return {"id": record.id, "object": "chat.completion.deleted", "deleted": True}


async def _stored(request: Request, completion_id: str) -> JobRecord:
    """The job behind a stored completion of the caller's. Raises NotFound, also while it is not complete."""
    pod: Pod = request.app.state.pod
    owner = pod.keyring.owner(request)
    with translated():
        record = await pod.jobs.get(completion_id)
        if record and record.owner == owner and record.kind == "chat" and record.body.get("store"):
            now = await settled(pod, record)
            if now and now.state in ("completed", "incomplete") and not now.deleted:
                return now
    raise NotFound(
        f"No stored chat completion with id {completion_id!r}.", code="completion_not_found", param="completion_id"
    )


def _message(record: JobRecord, index: int, message: dict[str, Any]) -> dict[str, Any]:
    content = message.get("content")
    parts = content if isinstance(content, list) else None
    return {
        "refusal": None,
        **message,
        "id": f"{record.id}-{index}",
        "content": None if parts else content,
        "content_parts": parts,
    }
