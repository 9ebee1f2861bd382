"""Finding a job for its owner, and forgetting it."""

import asyncio

from api.pod import Pod
from api.presence import cancel
from common.connections import translated
from common.errors import job_not_found
from common.events import END, TERMINAL
from common.records import JobRecord

SETTLE_SECONDS = 2.0
"""How long a job whose log has ended is waited for to have a terminal record."""
_POLL_SECONDS = 0.01


async def owned_job(pod: Pod, job_id: str, owner: str) -> JobRecord:
    """The job, if it is `owner`'s. Raises NotFound: whether somebody else's job exists is nobody's business."""
    with translated():
        record = await pod.jobs.get(job_id)
    if record is None or record.deleted or record.owner != owner:
        raise job_not_found(job_id)
    return record


async def settled_job(pod: Pod, job_id: str, owner: str) -> JobRecord:
    """`owned_job`, as it is once its log has ended, if it has."""
    record = await owned_job(pod, job_id, owner)
    with translated():
        return await settled(pod, record)


async def settled(pod: Pod, record: JobRecord) -> JobRecord:
    """The record after the end, if the log has ended: who has just read the end must not be told that the job runs.

    The worker writes the end first and the record a moment later; if it died in between, the record stays behind.
    """
    deadline = asyncio.get_running_loop().time() + SETTLE_SECONDS
    while record.state == "running" and asyncio.get_running_loop().time() < deadline:
        last = await pod.eventlog.last(record.id)
        if last is None or last["type"] != END:
            break
        await asyncio.sleep(_POLL_SECONDS)
        record = await pod.jobs.get(record.id) or record
    return record


async def forget(pod: Pod, record: JobRecord) -> None:
    """Cancel the job if it still waits or runs, and delete what there is of it."""
    with translated():
        found = await cancel(pod.jobs, pod.ender, record.id, "deleted", forget=True)
        if found in TERMINAL:
            await pod.jobs.delete(record.id)
            await pod.eventlog.delete(record.id)
