"""The WebSocket surface: several generations over one socket, stop from anywhere, resume by event id."""

import json
import secrets
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from tests.support.client import Client, answer_to, chat
from tests.support.processes import Stack
from tests.support.wait import until

ENDLESS = 1_000_000


def socket(stack: Stack, pod: int = 0, **options: Any) -> connect:
    return connect(stack.apis[pod].url.replace("http", "ws") + "/v1/ws", **options)


async def send(ws: ClientConnection, **message: Any) -> None:
    await ws.send(json.dumps(message))


async def receive(ws: ClientConnection) -> dict[str, Any]:
    message: dict[str, Any] = json.loads(await ws.recv())
    return message


class Transcript:
    """What a socket said about one job."""

    def __init__(self) -> None:
        self.text = ""
        self.last_id = ""
        self.statuses: list[str] = []
        self.done: dict[str, Any] | None = None

    def take(self, message: dict[str, Any]) -> None:
        self.last_id = message.get("event_id", self.last_id)
        if message["type"] == "token":
            self.text += message.get("content", "")
        elif message["type"] == "status":
            self.statuses.append(message["status"])
        elif message["type"] == "done":
            self.done = message
        else:
            raise AssertionError(message)


async def listen(ws: ClientConnection, transcript: Transcript | None = None, tokens: int | None = None) -> Transcript:
    """Until `done`, or until so many token messages came."""
    transcript = transcript or Transcript()
    heard = 0
    while transcript.done is None and (tokens is None or heard < tokens):
        message = await receive(ws)
        transcript.take(message)
        heard += message["type"] == "token"
    return transcript


async def test_generate(stack: Stack) -> None:
    body = chat("ws", 30)
    async with socket(stack) as ws:
        await send(ws, type="generate", **body)
        transcript = await listen(ws)
    assert transcript.text == answer_to(body)
    assert transcript.statuses[0] in ("queued", "running"), "as it was when the generation was accepted"
    assert transcript.statuses[1:] == ["running"]
    assert transcript.done
    assert transcript.done["status"] == "incomplete"
    assert transcript.done["usage"]["completion_tokens"] == 30


async def test_a_generate_with_a_key_can_be_repeated(stack: Stack, client: Client) -> None:
    """Cut before it knew the job's id, a client asks again, anywhere, and hears the one answer from its start."""
    body, key = chat("ws keyed", 60, tailrace={"grace_seconds": 60}), secrets.token_hex(8)
    async with socket(stack, 0) as ws:
        await send(ws, type="generate", idempotency_key=key, **body)
        first = await receive(ws)
    async with socket(stack, 1) as ws:
        await send(ws, type="generate", idempotency_key=key, ref="again", **body)
        again = await receive(ws)
        assert (again["id"], again["ref"]) == (first["id"], "again")
        assert (await listen(ws)).text == answer_to(body)
        await send(ws, type="generate", idempotency_key=key, **chat("another", 60))
        assert (await receive(ws))["error"]["code"] == "idempotency_key_reused"
    posted = await client.post("/v1/jobs", json=body, headers={"Idempotency-Key": key})
    assert (posted.status_code, posted.json()["id"]) == (200, first["id"])


async def test_several_generations_over_one_socket(stack: Stack) -> None:
    bodies = {f"r{i}": chat(f"ws {i}", 40) for i in range(8)}
    transcripts = {ref: Transcript() for ref in bodies}
    async with socket(stack) as ws:
        for ref, body in bodies.items():
            await send(ws, type="generate", ref=ref, **body)
        while not all(transcript.done for transcript in transcripts.values()):
            message = await receive(ws)
            transcripts[message["ref"]].take(message)
    for ref, body in bodies.items():
        assert transcripts[ref].text == answer_to(body)


async def test_cut_and_attach_on_another_pod(stack: Stack, client: Client) -> None:
    body = chat("ws resume", 150)
    job_id = await client.submit(body)
    transcript = Transcript()
    for turn in range(4):
        async with socket(stack, turn % 2) as ws:
            await send(ws, type="attach", id=job_id, **({"after": transcript.last_id} if transcript.last_id else {}))
            await listen(ws, transcript, tokens=7)
    async with socket(stack) as ws:
        await send(ws, type="attach", id=job_id, after=transcript.last_id)
        await listen(ws, transcript)
    assert transcript.text == answer_to(body)
    assert transcript.text == (await client.job(job_id))["output"]["choices"][0]["message"]["content"]


@pytest.mark.parametrize("short", [True, False])
async def test_stop(stack: Stack, short: bool) -> None:
    async with socket(stack) as ws:
        await send(ws, type="generate", **chat("ws stop", ENDLESS))
        transcript = await listen(ws, tokens=2)
        await ws.send('{"stop": true}' if short else json.dumps({"type": "stop"}))
        await listen(ws, transcript)
    assert transcript.done
    assert transcript.done["status"] == "cancelled"


async def test_stop_from_another_socket_on_another_pod(stack: Stack) -> None:
    """open-webui#14340: "task not found"."""
    async with socket(stack, 0) as here, socket(stack, 1) as there:
        await send(here, type="generate", **chat("ws stop elsewhere", ENDLESS))
        first = await receive(here)
        await send(there, type="stop", id=first["id"])
        transcript = await listen(here)
    assert transcript.done
    assert transcript.done["status"] == "cancelled"


async def test_leaving_cancels_what_was_generated_here_and_not_what_was_attached(stack: Stack, client: Client) -> None:
    kept = await client.submit(chat("ws kept", 300))
    async with socket(stack) as ws:
        await send(ws, type="attach", id=kept)
        await listen(ws, tokens=1)
        await send(ws, type="generate", ref="mine", **chat("ws leave", ENDLESS))
        message = await receive(ws)
        while message.get("ref") != "mine":
            message = await receive(ws)
        mine = message["id"]

    # Not by reading its stream: a reader who comes before the pod has seen the socket close keeps the job alive.
    async def cancelled() -> bool:
        return bool((await client.job(mine))["status"] == "cancelled")

    await until(cancelled, "what was generated here is cancelled")
    assert (await client.read(kept)).text == answer_to(chat("ws kept", 300))


async def test_leaving_at_once_still_cancels(stack: Stack, client: Client) -> None:
    """Before the generation's own task has taken its first step."""
    before = stack.workers[0].log.count("abandoned")
    for i in range(10):
        async with socket(stack) as ws:
            await send(ws, type="generate", **chat(f"ws hasty {i}", ENDLESS))

    async def none_runs() -> bool:
        return await client.metric("tailrace_queue_depth") + await client.metric("tailrace_running_jobs") == 0

    await until(none_runs, "all are cancelled")
    assert stack.workers[0].log.count("abandoned") == before, "by the pod, not by the worker's own look"


BAD = [
    ("{not json", "invalid_json", None),
    ("[]", "invalid_json", None),
    ('{"type": "generate", "ref": "\\ud83d"}', "invalid_json", None),
    ('{"type": "dance"}', "invalid_request", "type"),
    ("{}", "invalid_request", "type"),
    ('{"type": "attach"}', "invalid_request", "id"),
    ('{"type": "attach", "id": "job-none"}', "job_not_found", "id"),
    ('{"type": "stop", "id": 5}', "invalid_request", "id"),
    ('{"type": "generate", "idempotency_key": 5}', "invalid_request", "idempotency_key"),
    ('{"type": "generate", "idempotency_key": ""}', "invalid_request", "idempotency_key"),
    ('{"type": "generate", "model": "simulated"}', "invalid_request", "messages"),
    ('{"type": "generate", "model": "unknown", "prompt": "x"}', "model_not_found", "model"),
    ('{"type": "generate", "model": "simulated", "prompt": "x", "max_tokens": -1}', "invalid_request", "max_tokens"),
]


@pytest.mark.parametrize(("frame", "code", "param"), BAD)
async def test_a_bad_frame_is_answered_and_the_socket_lives_on(
    stack: Stack, frame: str, code: str, param: str | None
) -> None:
    async with socket(stack) as ws:
        await ws.send(frame)
        message = await receive(ws)
        assert message["type"] == "error"
        assert (message["error"]["code"], message["error"]["param"]) == (code, param)
        await send(ws, type="generate", **chat("still here", 2))
        assert (await listen(ws)).done


async def test_a_malformed_cursor_and_a_second_attach(stack: Stack, client: Client) -> None:
    job_id = await client.submit(chat("ws cursor", ENDLESS))
    async with socket(stack) as ws:
        await send(ws, type="attach", id=job_id, after="x", ref=1)
        message = await receive(ws)
        assert (message["error"]["code"], message["ref"]) == ("invalid_cursor", 1)
        await send(ws, type="attach", id=job_id)
        await listen(ws, tokens=1)
        await send(ws, type="attach", id=job_id, ref=2)
        while message.get("ref") != 2:
            message = await receive(ws)
        assert message["error"]["code"] == "already_attached"
    await client.post(f"/v1/jobs/{job_id}/cancel")


async def test_binary_frames_and_too_large_ones(stack: Stack) -> None:
    async with socket(stack) as ws:
        await ws.send(json.dumps({"type": "generate", **chat("binary", 2)}).encode())
        assert (await listen(ws)).done
        await ws.send("x" * 9_000_000)
        with pytest.raises(ConnectionClosed) as caught:
            await ws.recv()
        assert caught.value.rcvd
        assert caught.value.rcvd.code == 1009
