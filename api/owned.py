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
_POLL_SECONDS = 0.02


async def owned_job(pod: Pod, job_id: str, owner: str) -> JobRecord:
    """The job, if it is `owner`'s. Raises NotFound: whether somebody else's job exists is nobody's business."""
    with translated():
        record = await pod.jobs.get(job_id)
    if record is None or record.deleted or record.owner != owner:
        raise job_not_found(job_id)
    return record


async def settled_job(pod: Pod, job_id: str, owner: str) -> JobRecord:
    """`owned_job`, as it is once its log has ended, if it has."""
    with translated():
        record = await settled(pod, await owned_job(pod, job_id, owner))
    if record is None:
        raise job_not_found(job_id)
    return record


async def settled(pod: Pod, record: JobRecord) -> JobRecord | None:
    """The record after the end, if the log has ended: who has just read the end must not be told that the job runs.

    The worker writes the end first and the record a moment later; if it died in between, the record stays behind.
    None when the job has been forgotten meanwhile.
    """
    if record.state != "running":
        return record
    last = await pod.eventlog.last(record.id)
    if last is None or last["type"] != END:
        return record
    await until_ended(pod, record.id, SETTLE_SECONDS)
    now = await pod.jobs.get(record.id)
    return None if now is None or now.deleted else now


async def until_ended(pod: Pod, job_id: str, seconds: float) -> None:
    """Wait until the record is terminal or gone, or for so long."""
    deadline = asyncio.get_running_loop().time() + seconds
    while asyncio.get_running_loop().time() < deadline:
        [job] = await pod.jobs.standings([job_id])
        if job.state not in ("queued", "running"):
            return
        await asyncio.sleep(_POLL_SECONDS)


async def forget(pod: Pod, record: JobRecord) -> None:
    """Cancel the job if it still waits or runs, and delete what there is of it."""
    with translated():
        found = await cancel(pod.jobs, pod.ender, record.id, "deleted", forget=True)
        if found in TERMINAL:
            await pod.jobs.delete(record.id)
            await pod.eventlog.delete(record.id)
