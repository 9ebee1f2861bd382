"""`tailrace up` from the first process to the last."""

import contextlib
import json
import shlex
import signal
import socket
from pathlib import Path

import psutil
import pytest

from cli.failure import Failure
from cli.redis_server import find_binary
from tests.cli.conftest import StartUp
from tests.cli.support import Up, command_of, run, start
from tests.support.client import Client, answer_to, chat, chat_stream
from tests.support.processes import lives
from tests.support.wait import until


async def test_says_that_it_is_ready_and_what_to_try(system: Up) -> None:
    ready, example = system.out.splitlines()
    assert ready == f"ready {system.url} model=simulated engine=simulated"
    words = shlex.split(example)
    assert words[:3] == ["curl", "-N", f"{system.url}/v1/chat/completions"]
    body = {**json.loads(words[-1]), "max_tokens": 5}
    async with Client(system.url) as client:
        assert await chat_stream(client, body) == answer_to(body)


async def test_every_api_process_serves(system: Up) -> None:
    body = chat("from the second one", tokens=10)
    async with Client(system.urls[1]) as client:
        assert await chat_stream(client, body) == answer_to(body)


async def test_listens_for_redis_on_a_private_socket_only(system: Up) -> None:
    path = system.data / "redis" / "redis.sock"
    assert path.stat().st_mode & 0o777 == 0o700
    ports = {port for child in system.children() for port in _ports(child)}
    assert ports == {system.port, system.port + 1}


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGKILL])
async def test_leaves_nothing_behind_but_its_data(start_up: StartUp, signum: signal.Signals) -> None:
    # 1. A system that has done something, and ends.
    first = await start_up().ready()
    job = first.submit("remember me", "--max-tokens", "5")
    assert run("attach", job, TAILRACE_URL=first.url).exit_code == 0
    code = await first.stop(signum)  # fails when a child outlives it
    assert code == (0 if signum != signal.SIGKILL else -signal.SIGKILL)
    # A zombie whose last threads are still ending keeps the port for a moment.
    await until(lambda: _is_free(first.port), "the port is free")
    if signum != signal.SIGKILL:
        assert not (first.data / "redis" / "redis.sock").exists()
    # 2. The next one on the same data still has the job.
    second = await start_up().ready()
    assert second.job(job)["status"] == "incomplete"
    assert run("attach", job, TAILRACE_URL=second.url).out == answer_to(chat("remember me", tokens=5))
    # 3. What the first one logged is kept beside the new log.
    assert (second.data / "logs" / "worker-0.log.old").exists()


async def test_a_second_signal_does_not_wait_for_open_streams(start_up: StartUp) -> None:
    # 1. A stream that goes on for longer than anybody waits.
    up = await start_up(TAILRACE_DRAIN_SECONDS="3600").ready()
    children = up.children()
    async with Client(up.url) as client:
        job = await client.submit(chat("long", tokens=1_000_000))
        async with client.stream("GET", f"/v1/jobs/{job}/events") as response:
            await anext(response.aiter_bytes())
            # 2. The first signal waits for it, the second does not.
            up.process.send_signal(signal.SIGINT)
            await until(lambda: "stopping" in up.err, "up says that it stops")
            assert up.process.poll() is None
            up.process.send_signal(signal.SIGINT)
            assert await up.ended() == 0
    await until(lambda: not any(lives(child) for child in children), "all children have ended")
    assert not (up.data / "redis" / "redis.sock").exists()


async def test_what_dies_is_replaced_and_the_answer_goes_on(start_up: StartUp) -> None:
    up = await start_up(TAILRACE_SIM_ITL_MS="20", TAILRACE_LEASE_SECONDS="2").ready()
    body = chat("three deaths", tokens=200)
    job = up.submit("three deaths", "--max-tokens", "200")
    reader = start("attach", job, TAILRACE_URL=up.url)
    async with Client(up.url) as client:
        await until(lambda: client.metric("tailrace_open_streams"), "the reader is there")
    for victim, command in enumerate(["cli.main worker", "cli.main api", "redis-server"], start=1):
        old = up.child(command)
        old.kill()
        await until(lambda: up.err.count("starts again") == victim, f"{command} is missed")  # noqa: B023
        await until(lambda: any(command in command_of(c) for c in up.children()), f"a new {command}")  # noqa: B023
    text, complaints = reader.communicate(timeout=120)
    assert reader.returncode == 0
    assert "[the stream broke: " in complaints
    assert complaints.endswith("\nincomplete (length, 200 tokens)\n")
    assert text == answer_to(body)
    assert await up.stop(signal.SIGTERM) == 0


async def test_only_one_up_per_data_directory(system: Up) -> None:
    second = run("up", "--engine", "simulated", "--data-dir", str(system.data), "--port", "1025")
    assert second.exit_code == 1
    assert second.err == (
        f"error: another `tailrace up` (pid {system.process.pid}) uses {system.data}; choose another --data-dir\n"
    )


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (
            ["--redis-url", "redis://user:secret@127.0.0.1:1/0"],
            "Redis at redis://user:***@127.0.0.1:1/0 cannot be used",
        ),
        (["--redis-url", "http://127.0.0.1"], "must start with redis://"),
        (["--engine", "vllm", "--model", "/no/such/model"], "there is no model at /no/such/model"),
        (["--data-dir", "/dev/null/data"], "cannot use the data directory /dev/null/data"),
    ],
)
def test_says_in_one_line_what_cannot_work(tmp_path: Path, options: list[str], complaint: str) -> None:
    done = run("up", "--engine", "simulated", "--data-dir", str(tmp_path), *options)
    assert done.exit_code == 1
    assert complaint in done.err
    assert done.err.count("\n") == 1
    assert not done.out


def test_a_port_in_use(tmp_path: Path) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        done = run("up", "--engine", "simulated", "--data-dir", str(tmp_path), "--port", str(port))
    assert done.exit_code == 1
    assert done.err == (
        f"error: cannot serve 127.0.0.1 on port {port}: Address already in use; choose another --port\n"
    )


async def test_a_child_that_dies_during_the_start_ends_everything(start_up: StartUp) -> None:
    up = start_up("--engine", "openai", "--upstream-url", "http://127.0.0.1:1/v1")
    assert await up.ended() == 1
    assert not up.out
    last = up.err.splitlines()[-1]
    assert last.startswith("error: worker-0 ended during the start (exit code 1): ")
    assert "the engine did not start: http://127.0.0.1:1/v1/models: " in last
    assert last.endswith(f"(log: {up.data / 'logs' / 'worker-0.log'})")
    assert not (up.data / "redis" / "redis.sock").exists()


async def test_no_redis_server_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr("cli.redis_server.find_spec", lambda name: None)
    with pytest.raises(Failure, match="no redis-server found"):
        find_binary()


async def test_keys_are_respected(start_up: StartUp) -> None:
    key, line = (text.split(": ")[-1].strip() for text in run("keys", "new", "someone").out.split("\n", 1))
    up = await start_up(TAILRACE_API_KEYS=line.splitlines()[-1]).ready()
    assert "$TAILRACE_API_KEY" in up.out
    async with Client(up.url) as client:
        assert (await client.get("/v1/models")).status_code == 401
    assert run("status", TAILRACE_URL=up.url).exit_code == 1
    done = run("submit", "hi", "--max-tokens", "3", "--attach", "--url", up.url, "--api-key", key)
    assert (done.exit_code, done.out) == (0, answer_to(chat("hi", tokens=3)))


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return True
    return False


def _ports(process: psutil.Process) -> set[int]:
    return {c.laddr.port for c in process.net_connections("inet") if c.status == psutil.CONN_LISTEN}
