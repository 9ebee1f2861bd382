"""`/v1/jobs/batch`: many requests in one body, their answers in one stream."""

import logging
from contextlib import suppress
from typing import Any

from fastapi import APIRouter, Request
from redis.exceptions import RedisError
from starlette.responses import JSONResponse, Response, StreamingResponse

from api.batch.lines import reading
from api.batch.results import results
from api.pod import Pod
from api.submit import idempotency_key
from common.batches import Batch, Draft, batch_not_found
from common.connections import translated

log = logging.getLogger(__name__)

router = APIRouter(prefix="/v1/jobs/batch")


@router.post("")
async def create(request: Request) -> Response:
    """Every line is accepted, or none."""
    pod: Pod = request.app.state.pod
    owner = pod.keyring.owner(request)
    pod.accept_work()
    key = idempotency_key(request.headers)
    webhook_url = pod.webhooks.receiver(request.headers.get("x-tailrace-webhook-url"), by_default=True)
    read = reading(pod, owner, request)
    created = False
    try:
        with translated():
            await read.read(request)
            submitted = await pod.batches.submit(
                read.draft, webhook_url=webhook_url, idempotency_key=key, fingerprint=read.digest.hexdigest()
            )
        created = submitted.created
    finally:
        if not created:
            await _discard(read.draft)
    if created:
        pod.metrics.submitted.labels("batch").inc(len(read.draft))
        log.info("batch %s: accepted with %d lines from %s", submitted.id, len(read.draft), owner)
    return JSONResponse(
        batch_json(await owned_batch(pod, submitted.id, owner)),
        status_code=202 if created else 200,
        headers={"Location": f"/v1/jobs/batch/{submitted.id}"},
    )


@router.get("/{batch_id}")
async def retrieve(request: Request, batch_id: str) -> dict[str, Any]:
    pod: Pod = request.app.state.pod
    return batch_json(await owned_batch(pod, batch_id, pod.keyring.owner(request)))


@router.get("/{batch_id}/results")
async def read_results(request: Request, batch_id: str) -> Response:
    """The lines that have ended so far; all of them once the batch has."""
    pod: Pod = request.app.state.pod
    batch = await owned_batch(pod, batch_id, pod.keyring.owner(request))
    return StreamingResponse(results(pod.batches, batch), media_type="application/jsonl")


@router.post("/{batch_id}/cancel")
async def cancel(request: Request, batch_id: str) -> dict[str, Any]:
    """Idempotent; a batch that was never cancelled and has ended is a 409."""
    pod: Pod = request.app.state.pod
    owner = pod.keyring.owner(request)
    batch = await owned_batch(pod, batch_id, owner)
    with translated():
        await pod.batches.cancel(batch.id, "cancelled_by_client")
    log.info("batch %s: cancelled by %s", batch.id, owner)
    return batch_json(await owned_batch(pod, batch_id, owner))


async def _discard(draft: Draft) -> None:
    with suppress(RedisError, OSError):  # they lapse by themselves
        await draft.discard()


async def owned_batch(pod: Pod, batch_id: str, owner: str) -> Batch:
    """The batch, if it is `owner`'s. Raises NotFound."""
    with translated():
        batch = await pod.batches.get(batch_id)
    if batch is None or batch.owner != owner:
        raise batch_not_found(batch_id)
    return batch


def batch_json(batch: Batch) -> dict[str, Any]:
    """OpenAI's batch object, as far as its fields mean something here."""
    cancelled = batch.status == "cancelled"
    return {
        "id": batch.id,
        "object": "batch",
        "status": batch.status,
        "created_at": int(batch.created_at),
        "cancelling_at": _whole(batch.cancelling_at),
        "cancelled_at": _whole(batch.ended_at) if cancelled else None,
        "completed_at": None if cancelled else _whole(batch.ended_at),
        "results_expire_at": _whole(batch.expires_at),
        "request_counts": {"total": batch.total, "completed": batch.completed, "failed": batch.failed},
    }


def _whole(seconds: float | None) -> int | None:
    return int(seconds) if seconds is not None else None
