"""The textbook streaming proxy: FastAPI, httpx, a generator that asks at each line whether the client is still there.

BENCH_UPSTREAM=http://... python -m bench.baselines.proxy PORT
"""

import os
from collections.abc import AsyncGenerator

import httpx
from fastapi import FastAPI, Request
from fastapi.responses import PlainTextResponse, Response, StreamingResponse

from bench.baselines.server import serve

UPSTREAM = os.environ.get("BENCH_UPSTREAM", "")
JSON = {"Content-Type": "application/json"}

app = FastAPI()
client = httpx.AsyncClient(base_url=UPSTREAM, timeout=None, limits=httpx.Limits(max_connections=None))


@app.get("/health/live")
async def live() -> Response:
    return PlainTextResponse("ok")


@app.post("/v1/chat/completions")
async def chat(request: Request) -> Response:
    body = await request.body()

    async def lines() -> AsyncGenerator[str]:
        async with client.stream("POST", "/v1/chat/completions", content=body, headers=JSON) as upstream:
            async for line in upstream.aiter_lines():
                if await request.is_disconnected():
                    break
                yield line + "\n"

    return StreamingResponse(lines(), media_type="text/event-stream")


if __name__ == "__main__":
    serve(app)
