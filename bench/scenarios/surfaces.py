"""The three ways to read an answer, side by side: OpenAI chat over SSE, the native events, the WebSocket."""

from collections.abc import Callable

import httpx

from bench import systems
from bench.client import Stream
from bench.scenario import Options, Result, Scenario, Variant
from bench.scenarios.load import chat_streams, offered
from bench.wire import NATIVE, UPGRADE, WEBSOCKET, chat_body, get, text_frame

STREAMS, TOKENS, ITL_MS = 100, 200, 20


def websocket_streams(count: int, tokens: int) -> list[Stream]:
    """One socket and one generation for each."""
    frames = [text_frame({"type": "generate", **chat_body(k, tokens)}) for k in range(count)]
    return [Stream(UPGRADE, k, tokens, protocol=WEBSOCKET, frame=frame) for k, frame in enumerate(frames)]


def native_streams(url: str) -> Callable[[int, int], list[Stream]]:
    """Jobs submitted through the jobs API, then followed in the native view."""

    def make(count: int, tokens: int) -> list[Stream]:
        with httpx.Client(base_url=url) as client:
            ids = [client.post("/v1/jobs", json=chat_body(k, tokens)).json()["id"] for k in range(count)]
        return [Stream(get(f"/v1/jobs/{id}/events"), k, tokens, protocol=NATIVE) for k, id in enumerate(ids)]

    return make


def _variant(surface: str) -> Variant:
    def measured(options: Options) -> Result:
        with systems.tailrace(apis=options.apis, sim_itl_ms=ITL_MS, sim_slots=STREAMS) as system:
            make = {"chat": chat_streams, "native": native_streams(system.url), "websocket": websocket_streams}
            return offered(
                system, STREAMS, TOKENS // 4 if options.quick else TOKENS, make=make[surface], profile=options.profile
            )

    return measured


SURFACES = Scenario(
    "surfaces",
    "The same load on each surface",
    "100 streams of 200 tokens, 20 ms between tokens. `native`: `POST /v1/jobs`, then `GET /v1/jobs/{id}/events`; the "
    "first tokens are older than their reader, which is in their latency.",
    {surface: _variant(surface) for surface in ("chat", "native", "websocket")},
    rounds=1,
)
