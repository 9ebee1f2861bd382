"""Waiting on a job while its client may hang up."""

import asyncio
from typing import Any

from starlette.requests import Request


class ClientGone(Exception):
    """The client closed the connection; there is nobody to answer."""


async def unless_gone(request: Request, work: "asyncio.Future[Any]", seconds: float | None = None) -> bool:
    """Whether `work` is done within `seconds` (None: wait for ever). `work` goes on either way.

    Raises ClientGone as soon as the client disconnects. The request's body must have been read.
    """
    leaving = asyncio.ensure_future(_disconnect(request))
    try:
        await asyncio.wait({work, leaving}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if leaving.done() and not work.done():
            raise ClientGone
        return work.done()
    finally:
        if not leaving.done():  # if it is, no round of a busy event loop is waited: the engine speaks to nobody
            leaving.cancel()
            await asyncio.gather(leaving, return_exceptions=True)


async def _disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
