"""`/v1/chat/completions`, `/v1/completions`, `/v1/models`: OpenAI's endpoints, each request a job."""

from typing import Any, Literal

from fastapi import APIRouter, Request
from starlette.responses import Response

from api.answers import answer
from api.bodies import read_json
from api.pod import Pod
from api.sse import JobStream
from api.submit import Accepted, submit
from api.views import View, make_view, whole
from common.connections import translated
from common.errors import NotFound
from common.fleet import WorkerInfo

router = APIRouter(prefix="/v1")


async def chat_completions(request: Request) -> Response:
    return await _complete(request, "chat")


async def completions(request: Request) -> Response:
    return await _complete(request, "completion")


# Plain routes. One of FastAPI's own takes each request apart for parameters that these do not have.
router.add_route("/v1/chat/completions", chat_completions, methods=["POST"])
router.add_route("/v1/completions", completions, methods=["POST"])


@router.get("/models")
async def models(request: Request) -> dict[str, Any]:
    pod: Pod = request.app.state.pod
    pod.keyring.owner(request)
    with translated():
        await pod.models.refresh()
    served = {worker.model: worker for worker in pod.models.workers}
    return {"object": "list", "data": [_model(worker) for worker in served.values()]}


@router.get("/models/{model:path}")
async def model(request: Request, model: str) -> dict[str, Any]:
    pod: Pod = request.app.state.pod
    pod.keyring.owner(request)
    with translated():
        await pod.models.refresh()
    serving = pod.models.serving(model)
    if not serving:
        raise NotFound(f"The model {model!r} is not served at the moment.", code="model_not_found", param="model")
    return _model(serving[-1])


def _model(worker: WorkerInfo) -> dict[str, Any]:
    return {
        "id": worker.model,
        "object": "model",
        "created": int(worker.started_at),
        "owned_by": "tailrace",
        "engine": worker.engine,
        "max_model_len": worker.max_model_len,
    }


async def _complete(request: Request, kind: Literal["chat", "completion"]) -> Response:
    pod: Pod = request.app.state.pod
    owner = pod.keyring.owner(request)
    raw = await read_json(request, pod.settings.max_body_bytes)
    accepted = await submit(pod, kind, raw, owner, request.headers, on_disconnect="cancel")
    return await answer(
        request,
        pod,
        accepted.record,
        streamed=(lambda attachment: JobStream(pod, attachment, _view(accepted))) if accepted.body.stream else None,
        whole=lambda told: whole(accepted.record, told.result()),
    )


def _view(accepted: Accepted) -> View:
    options = accepted.body.stream_options
    include_usage = bool(options and options.include_usage)
    return make_view(accepted.record.kind, accepted.record, include_usage=include_usage)
