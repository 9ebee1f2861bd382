"""Changing the generation parameters of a job while it waits or runs.

A running answer is continued under the new parameters by its worker, after the last token: same log, same
readers. Possible only where a continuation is; the job's first event says so.
"""

import logging
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StrictInt, StrictStr, ValidationError

from api.bodies import bad_request
from api.pod import Pod
from common.connections import translated
from common.errors import BadRequest, Conflict, job_not_found
from common.events import STARTED, decode
from common.records import JobRecord

log = logging.getLogger(__name__)

Penalty = Annotated[float, Field(strict=True, ge=-2, le=2)]


class Course(BaseModel):
    """The parameters that can be changed; those that are not given stay."""

    model_config = ConfigDict(extra="forbid")

    temperature: Annotated[float, Field(strict=True, ge=0)] = 0
    top_p: Annotated[float, Field(strict=True, gt=0, le=1)] = 1
    presence_penalty: Penalty = 0
    frequency_penalty: Penalty = 0
    repetition_penalty: Annotated[float, Field(strict=True, gt=0)] = 1
    max_tokens: Annotated[StrictInt, Field(ge=1)] = 1
    max_completion_tokens: Annotated[StrictInt, Field(ge=1)] = 1
    stop: StrictStr | list[StrictStr] = ""


async def steer(pod: Pod, record: JobRecord, changes: dict[str, Any]) -> None:
    """Apply `changes`. Raises BadRequest for what cannot be changed, Conflict when the job cannot be steered."""
    parameters = _parse(changes)
    with translated():
        await _check_continuable(pod, record)
        found = await pod.jobs.steer(record.id, parameters)
    if found == "missing":
        raise job_not_found(record.id)
    if found not in ("queued", "running"):
        raise Conflict(f"The job has already ended ({found}).", code="job_already_ended")
    log.info("job %s: steered while %s: %s", record.id, found, parameters)


def _parse(changes: dict[str, Any]) -> dict[str, Any]:
    try:
        parameters = Course.model_validate(changes).model_dump(exclude_unset=True)
    except ValidationError as error:
        raise bad_request(error) from error
    if not parameters:
        raise BadRequest("Give at least one parameter to change.", param="temperature")
    return parameters


async def _check_continuable(pod: Pod, record: JobRecord) -> None:
    first = await pod.eventlog.read_after(record.id, count=1)
    if not first or record.terminal:
        return
    event = decode(first[0][1])
    if event["type"] == STARTED and not event["continuable"]:
        raise Conflict(
            "This answer cannot be continued under other parameters: it has several choices, is bound to a format, or "
            "comes from an engine that does not tell its tokens.",
            code="not_continuable",
        )
