"""Serves a baseline the way the product serves itself: one uvicorn process on uvloop and httptools."""

import sys

import uvicorn
from starlette.types import ASGIApp


def serve(app: ASGIApp) -> None:
    """The port is the first argument."""
    uvicorn.run(
        app,
        port=int(sys.argv[1]),
        loop="uvloop",
        http="httptools",
        access_log=False,
        log_level="warning",
        # Else an overloaded proxy sends its next request on a connection that has just been closed.
        timeout_keep_alive=300,
    )
