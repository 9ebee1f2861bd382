"""Answering the request that made a job with the job's answer: as a stream, or whole: what all surfaces share."""

import asyncio
from collections.abc import Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from api.attachment import Attachment
from api.follow import Said
from api.pod import Pod
from api.waiting import ClientGone, unless_gone
from common.aggregate import Aggregate
from common.errors import Unavailable, from_event
from common.events import DELTA, END
from common.records import JobRecord

CLIENT_CLOSED_REQUEST = 499
"""nginx's status for a client that left; nobody sees it but the access log."""


async def answer(
    request: Request,
    pod: Pod,
    record: JobRecord,
    *,
    streamed: Callable[[Attachment], Response] | None,
    whole: Callable[[Aggregate], dict[str, Any]],
) -> Response:
    """The response that `streamed` makes, or, if that is None, what `whole` makes of the ended job's answer.

    Raises TailraceError for a job that failed: before its first token, or before its end.
    """
    attachment = Attachment(pod, record)
    await attachment.open()
    try:
        if streamed:
            await _wait_for_first_token(request, pod, attachment)
            return streamed(attachment)
        told = whole(await _answer_whole(request, attachment))
    except ClientGone:
        attachment.close()
        return Response(status_code=CLIENT_CLOSED_REQUEST)
    except BaseException:
        attachment.close()
        raise
    attachment.close()
    return JSONResponse(told, headers={"X-Job-Id": record.id})


async def _wait_for_first_token(request: Request, pod: Pod, attachment: Attachment) -> None:
    """A stream begins with its first token, or after a while, so that an early failure is a real HTTP status.

    Raises ClientGone, and TailraceError for a job that failed before its first token.
    """
    first = attachment.begin()
    await unless_gone(request, first, pod.settings.first_event_wait_seconds)
    if first.done():
        _raise_early_failure(first.result())


async def _answer_whole(request: Request, attachment: Attachment) -> Aggregate:
    """The answer once the job has ended. Raises ClientGone, and TailraceError for a job that failed."""
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
        raise _shutting_down()
    if error := answer.end.get("error"):
        raise from_event(error)
    return answer


def _raise_early_failure(said: Said) -> None:
    if any(event["type"] == DELTA for _, event in said):
        return
    if not said or said[-1][1]["type"] != END:
        raise _shutting_down()
    if error := said[-1][1].get("error"):
        raise from_event(error)


def _shutting_down() -> Unavailable:
    return Unavailable("This pod is shutting down.", code="shutting_down", retry_after=1)
