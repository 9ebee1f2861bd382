"""Tailrace's own streams, read the obvious way: one Redis connection and one blocking XREAD for each viewer.

    BENCH_UPSTREAM=http://... TAILRACE_... python -m bench.baselines.per_client PORT

Jobs are submitted to a pod of Tailrace; everything after that is this process's.
"""

import json
import os
from collections.abc import AsyncGenerator

import httpx
from fastapi import FastAPI, Request
from fastapi.responses import PlainTextResponse, Response, StreamingResponse
from redis.asyncio import Redis

from bench.baselines.chunks import DONE, chunk
from bench.baselines.server import serve
from common.eventlog import parse_entry
from common.events import DELTA, END, decode
from common.keys import Keys
from common.settings import Settings

settings = Settings()
keys = Keys(settings.namespace)
app = FastAPI()
pod = httpx.AsyncClient(base_url=os.environ.get("BENCH_UPSTREAM", ""), timeout=60)


@app.get("/health/live")
async def live() -> Response:
    return PlainTextResponse("ok")


@app.post("/v1/chat/completions")
async def chat(request: Request) -> Response:
    accepted = await pod.post("/v1/jobs", json=json.loads(await request.body()))
    accepted.raise_for_status()
    return StreamingResponse(_chunks(accepted.json()["id"]), media_type="text/event-stream")


async def _chunks(job_id: str) -> AsyncGenerator[bytes]:
    cursor: str | bytes = "0"
    async with Redis.from_url(settings.stream_url) as redis:
        while True:
            for _, items in await redis.xread({keys.stream(job_id): cursor}, count=64, block=5000):
                cursor = items[-1][0]
                for item in items:
                    event = decode(parse_entry(item)[1])
                    if event["type"] == DELTA:
                        yield chunk(job_id, event)
                    elif event["type"] == END:
                        yield DONE
                        return


if __name__ == "__main__":
    serve(app)
