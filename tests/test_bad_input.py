"""Bad input: its own status, OpenAI's error object, and nothing enqueued."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.support.client import Client, chat
from tests.support.processes import Stack

MESSAGES = [{"role": "user", "content": "hi"}]


def bad(**changes: Any) -> dict[str, Any]:
    return {**chat("hi", 5), **changes}


CASES: list[tuple[str, Any, int, str, str | None]] = [
    ("chat/completions", b"{not json", 400, "invalid_json", None),
    ("chat/completions", b"", 400, "invalid_json", None),
    ("chat/completions", b"[1, 2]", 400, "invalid_json", None),
    ("chat/completions", b'{"model": NaN}', 400, "invalid_json", None),
    ("chat/completions", b"[" * 100_000, 400, "invalid_json", None),
    ("chat/completions", b"\xff\xfe", 400, "invalid_json", None),
    ("chat/completions", b'{"model": "\\ud83d"}', 400, "invalid_json", None),
    ("chat/completions", b'{"seed": 1000000000000000000000000}', 400, "invalid_json", None),
    ("chat/completions", {"messages": MESSAGES}, 400, "invalid_request", "model"),
    ("chat/completions", bad(model=5), 400, "invalid_request", "model"),
    ("chat/completions", bad(model="unknown"), 404, "model_not_found", "model"),
    ("chat/completions", bad(messages=[]), 400, "invalid_request", "messages"),
    ("chat/completions", bad(messages="hi"), 400, "invalid_request", "messages"),
    ("chat/completions", bad(messages=[{"content": "hi"}]), 400, "invalid_request", "messages.0.role"),
    ("chat/completions", {"model": "simulated"}, 400, "invalid_request", "messages"),
    ("chat/completions", bad(max_tokens=-1), 400, "invalid_request", "max_tokens"),
    ("chat/completions", bad(max_tokens=0), 400, "invalid_request", "max_tokens"),
    ("chat/completions", bad(max_tokens="5"), 400, "invalid_request", "max_tokens"),
    ("chat/completions", bad(max_tokens=True), 400, "invalid_request", "max_tokens"),
    ("chat/completions", bad(n=0), 400, "invalid_request", "n"),
    ("chat/completions", bad(temperature="hot"), 400, "invalid_request", "temperature"),
    ("chat/completions", bad(temperature=-1), 400, "invalid_request", "temperature"),
    ("chat/completions", bad(stream="yes"), 400, "invalid_request", "stream"),
    ("chat/completions", bad(stop=5), 400, "invalid_request", "stop"),
    ("chat/completions", bad(tailrace={"on_disconnect": "maybe"}), 400, "invalid_request", "tailrace.on_disconnect"),
    ("chat/completions", bad(tailrace={"unknown": 1}), 400, "invalid_request", "tailrace.unknown"),
    ("chat/completions", bad(tailrace={"priority": 101}), 400, "invalid_request", "tailrace.priority"),
    ("chat/completions", bad(tailrace={"deadline_seconds": -1}), 400, "invalid_request", "tailrace.deadline_seconds"),
    ("chat/completions", bad(tailrace="no"), 400, "invalid_request", "tailrace"),
    ("completions", {"model": "simulated"}, 400, "invalid_request", "prompt"),
    ("completions", {"model": "simulated", "prompt": []}, 400, "invalid_request", "prompt"),
    ("completions", {"model": "simulated", "prompt": {"a": 1}}, 400, "invalid_request", "prompt"),
    ("jobs", {"model": "simulated"}, 400, "invalid_request", "messages"),
    ("jobs", {"model": "simulated", "prompt": "a", "messages": MESSAGES}, 400, "invalid_request", "messages"),
    ("jobs", bad(model="unknown"), 404, "model_not_found", "model"),
]


@pytest.mark.parametrize(("path", "body", "status", "code", "param"), CASES)
async def test_a_bad_body(client: Client, path: str, body: Any, status: int, code: str, param: str | None) -> None:
    before = await client.metric("tailrace_jobs_submitted_total")
    sent = {"content": body} if isinstance(body, bytes) else {"json": body}
    response = await client.post(f"/v1/{path}", **sent)
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert (error["code"], error["param"]) == (code, param)
    assert error["message"]
    assert await client.metric("tailrace_jobs_submitted_total") == before


@pytest.mark.parametrize(
    "cursor", ["x", "1", "1-", "1-2-3", "1-2.", "1-2.x", "1-0.1", "0-1", "0-100", "-1-2", "1-" + "9" * 40, "٣-١"]
)
@pytest.mark.parametrize("where", ["header", "query"])
async def test_a_malformed_cursor(client: Client, cursor: str, where: str) -> None:
    job_id = await client.submit(chat("hi", 1))
    url = f"/v1/jobs/{job_id}/events"
    if where == "query":
        response = await client.get(url, params={"after": cursor})
    else:
        response = await client.get(url, headers=[(b"Last-Event-ID", cursor.encode())])
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["code"] == "invalid_cursor"
    assert error["param"] == ("after" if where == "query" else "Last-Event-ID")


@pytest.mark.parametrize("declared", [True, False])
async def test_a_body_over_the_limit(client: Client, declared: bool) -> None:
    """With a Content-Length and without. What comes after the limit is dropped, not kept."""

    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(300):
            yield b"x" * 65_536

    content = b"x" * (300 * 65_536) if declared else chunks()
    response = await client.post("/v1/chat/completions", content=content)
    assert response.status_code == 413
    assert response.json()["error"]["code"] == "body_too_large"


async def test_an_unknown_view_and_one_of_the_other_kind(client: Client) -> None:
    job_id = await client.submit(chat("hi", 1))
    for view in ("strange", "completion"):
        response = await client.get(f"/v1/jobs/{job_id}/events", params={"view": view})
        assert response.status_code == 400
        assert response.json()["error"]["param"] == "view"


async def test_a_bad_header(client: Client) -> None:
    response = await client.post("/v1/jobs", json=chat("hi", 1), headers={"X-Tailrace-Priority": "high"})
    assert response.status_code == 400
    response = await client.post("/v1/jobs", json=chat("hi", 1), headers={"Idempotency-Key": "k" * 300})
    assert response.json()["error"]["param"] == "Idempotency-Key"


async def test_headers_set_what_the_body_leaves_out(client: Client) -> None:
    headers = {"X-Tailrace-Deadline-Seconds": "0.2"}
    job_id = await client.submit(chat("hi", 1_000_000), headers=headers)
    heard = await client.read(job_id)
    assert heard.end
    assert heard.end["error"]["code"] == "deadline_exceeded"


async def test_paths_and_methods_that_do_not_exist(client: Client) -> None:
    response = await client.get("/v1/nothing")
    assert response.status_code == 404
    assert response.json()["error"]["code"] == "not_found"
    response = await client.delete("/v1/models")
    assert response.status_code == 405
    assert response.json()["error"]["type"] == "invalid_request_error"


async def test_a_client_that_leaves_in_the_middle_of_its_body_is_no_error_of_ours(stack: Stack, client: Client) -> None:
    """Found by chaos: each was a 500 `internal_error` in the metrics and two tracebacks in the pod's log."""
    before = await client.metric("tailrace_http_errors_total")
    host, port = stack.apis[0].url.removeprefix("http://").split(":")
    for path in ("/v1/jobs", "/v1/chat/completions"):
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{{".encode())
        await writer.drain()
        # The pod is in the middle of reading when it answers somebody else, and has seen the end after the next answer.
        await client.get("/v1/models")
        writer.close()
        await writer.wait_closed()
        await client.get("/v1/models")
    assert await client.metric("tailrace_http_errors_total") == before
    assert "Exception in ASGI application" not in stack.apis[0].log
