"""Writing a batch's answers: JSON Lines in OpenAI's batch output format, a few at a time."""

from collections.abc import AsyncIterator
from typing import Any

from pydantic_core import to_json

from api.views import whole
from api.views.chunks import wire_error
from common.batches import Batch, BatchStore, batch_not_found
from common.errors import job_not_found
from common.records import JobRecord

AT_ONCE = 16
"""Records held in memory by one reader of results."""


async def results(batches: BatchStore, batch: Batch) -> AsyncIterator[bytes]:
    """One line for each job of the batch that has ended by the time its turn comes, in the order of the input.

    Raises NotFound when the batch expires meanwhile: the stream is cut, so that a part does not pass for the whole.
    """
    for start in range(0, batch.total, AT_ONCE):
        lines = await batches.lines(batch.id, start, AT_ONCE)
        if not lines:
            raise batch_not_found(batch.id)
        for job_id, custom_id, record in lines:
            if record is None or record.terminal:
                yield to_json(_line(job_id, custom_id, record)) + b"\n"


def _line(job_id: str, custom_id: str, record: JobRecord | None) -> dict[str, Any]:
    return {
        "id": "batch_req_" + job_id.replace("_", "-").rpartition("-")[2],
        "custom_id": custom_id,
        "response": _response(record) if record else None,
        "error": _error(job_id, record),
    }


def _response(record: JobRecord) -> dict[str, Any] | None:
    """What the endpoint would have answered; None for a job that was cancelled, so that nobody was answered."""
    if record.state == "cancelled":
        return None
    if record.error:
        return {
            "status_code": record.error.get("status", 500),
            "request_id": record.id,
            "body": {"error": wire_error(record.error)},
        }
    return {"status_code": 200, "request_id": record.id, "body": whole(record, record.result or {"choices": []})}


def _error(job_id: str, record: JobRecord | None) -> dict[str, Any] | None:
    """Why there is no response."""
    if record is None:
        missing = job_not_found(job_id)
        return {"code": missing.code, "message": missing.message}
    if record.state == "cancelled" and record.error:
        return {"code": record.error["code"], "message": record.error["message"]}
    return None
