"""Health and metrics."""

from fastapi import APIRouter, Request
from redis.exceptions import RedisError
from starlette.responses import JSONResponse, PlainTextResponse, Response

from api.pod import Pod
from common.connections import translated

router = APIRouter()


@router.get("/health/live")
async def live() -> dict[str, str]:
    """The process answers. Does not depend on Redis: restarting a pod does not mend Redis."""
    return {"status": "ok"}


@router.get("/health/ready")
async def ready(request: Request) -> Response:
    """Whether the pod should get traffic: not while it shuts down or cannot reach Redis."""
    pod: Pod = request.app.state.pod
    problems = ["shutting_down"] if pod.draining else []
    try:
        await pod.control.ping()
        await pod.stream.ping()
    except (RedisError, OSError):
        problems.append("redis_unavailable")
    return JSONResponse(
        {"status": "unavailable" if problems else "ok", "problems": problems, "workers": len(pod.models.workers)},
        status_code=503 if problems else 200,
    )


@router.get("/metrics")
async def metrics(request: Request) -> Response:
    pod: Pod = request.app.state.pod
    keys = pod.jobs.keys
    with translated():
        known = sorted(pod.models.known)
        async with pod.control.pipeline(transaction=False) as pipe:
            for model in known:
                pipe.zcard(keys.queue(model))
                pipe.zcard(keys.running(model))
            counts = await pipe.execute() if known else []
    depths = {model: (counts[2 * i], counts[2 * i + 1]) for i, model in enumerate(known)}
    return PlainTextResponse(
        pod.metrics.render(depths, pod.models.workers), media_type="text/plain; version=0.0.4; charset=utf-8"
    )
