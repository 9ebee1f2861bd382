"""API keys on every surface, and jobs that only their owner can see."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import connect

from tests.conftest import MakeStack
from tests.support.client import Client, chat
from tests.support.processes import Process, Stack, free_port, tailrace

KEYS = {"alice": "key-of-alice", "bob": "key-of-bob"}


def digest(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


@pytest.fixture
def locked(make_stack: MakeStack, tmp_path: Path) -> Stack:
    keys_file = tmp_path / "keys"
    keys_file.write_text(f"# a comment\n\nbob:{digest(KEYS['bob'])}\n")
    stack = make_stack(api_keys=f"alice:{digest(KEYS['alice'])}", api_keys_file=keys_file)
    stack.both()
    return stack


def of(name: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {KEYS[name]}"}


REQUESTS: list[tuple[str, str, Any]] = [
    ("GET", "/v1/models", None),
    ("POST", "/v1/chat/completions", chat()),
    ("POST", "/v1/completions", {"model": "simulated", "prompt": "x"}),
    ("POST", "/v1/jobs", chat()),
    ("GET", "/v1/jobs/{id}", None),
    ("GET", "/v1/jobs/{id}/events", None),
    ("POST", "/v1/jobs/{id}/cancel", None),
    ("DELETE", "/v1/jobs/{id}", None),
]


async def test_every_surface_asks_for_a_key_and_hides_others_jobs(locked: Stack) -> None:
    url = locked.apis[0].url
    async with Client(url) as nobody, Client(url, headers=of("alice")) as alice, Client(url, headers=of("bob")) as bob:
        job_id = await alice.submit(chat("mine", 1_000_000))
        for method, path, body in REQUESTS:
            refused = await nobody.request(method, path.format(id=job_id), json=body)
            assert refused.status_code == 401, path
            assert refused.json()["error"]["code"] == "invalid_api_key"
            wrong = await nobody.request(
                method, path.format(id=job_id), json=body, headers={"Authorization": "Bearer no"}
            )
            assert wrong.status_code == 401
            if "{id}" in path:
                foreign = await bob.request(method, path.format(id=job_id), json=body)
                assert foreign.status_code == 404, path
                assert foreign.json() == (await bob.request(method, path.format(id=job_id), json=body)).json()
        assert (await alice.job(job_id))["status"] in ("queued", "running"), "nobody else could cancel it"
        assert (await nobody.get("/health/ready")).status_code == 200
        assert (await alice.delete(f"/v1/jobs/{job_id}")).status_code == 200


async def test_websocket_keys(locked: Stack) -> None:
    url = locked.apis[0].url.replace("http", "ws") + "/v1/ws"
    async with connect(url) as ws:
        assert json.loads(await ws.recv())["error"]["code"] == "invalid_api_key"
        await ws.wait_closed()
        assert ws.close_code == 4401
    for options in (
        {"additional_headers": of("alice")},
        {"subprotocols": ["tailrace", f"tailrace-api-key.{KEYS['alice']}"]},
    ):
        async with connect(url, **options) as ws:
            await ws.send(json.dumps({"type": "generate", **chat("hi", 1)}))
            assert json.loads(await ws.recv())["type"] == "status"


def test_without_keys_a_pod_serves_loopback_only(make_stack: MakeStack, tmp_path: Path) -> None:
    stack = make_stack(host="0.0.0.0")
    env = stack._env({"port": free_port()})
    refused = Process("open", tailrace("api"), tmp_path, env)
    assert refused.wait() == 1
    lines = [line for line in refused.log.splitlines() if line.startswith("error:")]
    assert len(lines) == 1
    assert "without API keys" in lines[0]
    assert "Traceback" not in refused.log
    stack.api(allow_anonymous=1)


@pytest.mark.parametrize("keys", ["alice", "alice:short", f":{digest('x')}", f"alice:{'g' * 64}"])
def test_unreadable_keys_stop_the_pod(make_stack: MakeStack, tmp_path: Path, keys: str) -> None:
    stack = make_stack(api_keys=keys)
    refused = Process("bad-keys", tailrace("api"), tmp_path, stack._env({"port": free_port()}))
    assert refused.wait() == 1
    assert "error: not 'name:sha256hex'" in refused.log
    assert "Traceback" not in refused.log
