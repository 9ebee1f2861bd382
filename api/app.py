"""The FastAPI application of one pod."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, TypeGuard

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from api.answers import CLIENT_CLOSED_REQUEST
from api.pod import Pod
from api.routes import batch, jobs, openai, ops, responses, stored, ws
from api.sse import SERVER_SEND
from common.errors import BY_STATUS, BadRequest, NotFound, ServerFault, TailraceError
from common.settings import Settings

log = logging.getLogger(__name__)


class PodApp(FastAPI):
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope[SERVER_SEND] = send
        try:
            await super().__call__(scope, receive, send)
        finally:
            del scope[SERVER_SEND]  # it knows the scope: a cycle, which only the garbage collector would end


def create_app(settings: Settings) -> FastAPI:
    """Raises ValueError or OSError for API keys that cannot be read."""
    pod = Pod(settings)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await pod.start()
        yield
        await pod.stop()

    app = PodApp(title="Tailrace", lifespan=lifespan, openapi_url=None)
    app.state.pod = pod
    # `batch` before `jobs`, where it would be the id of a job.
    for module in (openai, stored, responses, batch, jobs, ws, ops):
        app.include_router(module.router)
    app.add_exception_handler(TailraceError, _tailrace_error)
    app.add_exception_handler(HTTPException, _http_exception)
    app.add_exception_handler(RequestValidationError, _validation_error)
    app.add_exception_handler(ClientDisconnect, _client_gone)
    app.add_exception_handler(Exception, _unexpected)
    return app


async def _tailrace_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, TailraceError)
    return error_response(request, error)


async def _http_exception(request: Request, error: Exception) -> Response:
    """Routing's own errors: no such path, wrong method."""
    assert isinstance(error, HTTPException)
    if error.status_code == 404:
        return error_response(request, NotFound(_not_served(request)))
    fault = BY_STATUS.get(error.status_code, BadRequest)(str(error.detail))
    if allowed := (error.headers or {}).get("Allow"):
        fault.message = f"{request.method} is not served at {request.url.path}, only {allowed}."
    return error_response(request, fault, status=error.status_code)


def _not_served(request: Request) -> str:
    message = f"Nothing is served at {request.method} {request.url.path}."
    if request.url.path.startswith("/v1/"):
        routes = [route for route in request.app.routes if _is_api(route)]
        served = [f"{' '.join(route.methods or ())} {route.path_format}" for route in routes]
        message += " Tailrace generates text; embeddings, audio, images and so on need another server."
        message += f" It serves: {', '.join(served)}."
    return message


def _is_api(route: BaseRoute) -> TypeGuard[Route]:
    return isinstance(route, Route) and route.path.startswith("/v1/")


async def _validation_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first: dict[str, Any] = error.errors()[0]
    param = str(first["loc"][-1])
    return error_response(request, BadRequest(f"{param}: {first['msg']}", param=param))


async def _client_gone(_: Request, __: Exception) -> Response:
    """The client left in the middle of its own request: no fault of ours, and nobody to answer."""
    return Response(status_code=CLIENT_CLOSED_REQUEST)


async def _unexpected(request: Request, error: Exception) -> Response:
    log.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return error_response(request, ServerFault("Internal error."))


def error_response(request: Request, error: TailraceError, status: int | None = None) -> Response:
    pod: Pod = request.app.state.pod
    pod.metrics.errors.labels(error.code).inc()
    headers = {"Retry-After": str(error.retry_after)} if error.retry_after is not None else {}
    if error.final:
        # OpenAI's SDKs obey it; without it they repeat every 409 and 5xx, so a cancelled job would begin again.
        headers["X-Should-Retry"] = "false"
    return JSONResponse({"error": error.to_dict()}, status_code=status or error.status, headers=headers)
