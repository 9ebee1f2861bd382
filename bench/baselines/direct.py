"""The simulated engine behind a plain OpenAI-style server, in one process: what there is without Tailrace.

python -m bench.baselines.direct PORT     (with the settings TAILRACE_SIM_*)
"""

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from bench.baselines.chunks import DONE, chunk
from bench.baselines.server import serve
from common.events import DELTA
from common.settings import Settings
from workers.engines.base import GenerationRequest
from workers.engines.simulated import SimulatedEngine

engine = SimulatedEngine(Settings())


@contextlib.asynccontextmanager
async def lifespan(_: Starlette) -> AsyncIterator[None]:
    await engine.start()
    yield
    await engine.stop()


async def live(_: Request) -> Response:
    return PlainTextResponse("ok")


async def chat(request: Request) -> Response:
    body = await request.json()
    # Starlette cancels the generator when the client leaves, and that aborts the request in the engine.
    return StreamingResponse(_chunks(GenerationRequest("direct", "chat", body)), media_type="text/event-stream")


async def _chunks(request: GenerationRequest) -> AsyncGenerator[bytes]:
    async with contextlib.aclosing(engine.generate(request)) as events:
        async for event in events:
            if event["type"] == DELTA:
                yield chunk("direct", event)
    yield DONE


app = Starlette(
    routes=[Route("/v1/chat/completions", chat, methods=["POST"]), Route("/health/live", live)], lifespan=lifespan
)

if __name__ == "__main__":
    serve(app)
