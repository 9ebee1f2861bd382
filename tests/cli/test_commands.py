"""`submit`, `attach`, `cancel`, `status` and `chat` against a running system."""

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from tests.cli.support import TAILRACE, Up, environment, run, start
from tests.support.client import Client, answer_to, chat
from tests.support.wait import until


@pytest.fixture
def url(system: Up) -> dict[str, str]:
    return {"TAILRACE_URL": system.url}


async def test_submit_now_attach_later_elsewhere(system: Up) -> None:
    job = system.submit("hello", "--max-tokens", "20")
    done = run("attach", job, "--url", system.urls[1])
    assert done.exit_code == 0
    assert done.out == answer_to(chat("hello", tokens=20))
    assert done.err == "incomplete (length, 20 tokens)\n"


async def test_attach_after_an_event(system: Up) -> None:
    job = system.submit("the rest", "--max-tokens", "20")
    async with Client(system.url) as client:
        heard = await client.read(job)
        head = await client.read(job, stop_after=1)
    assert heard.text.startswith(head.text)
    done = run("attach", job, "--after", head.ids[-1], TAILRACE_URL=system.url)
    assert head.text + done.out == answer_to(chat("the rest", tokens=20))


async def test_submit_from_stdin_and_stay(url: dict[str, str]) -> None:
    done = run("submit", "-", "--attach", "--max-tokens", "4", "--seed", "7", stdin="from a pipe", **url)
    assert done.out == answer_to(chat("from a pipe", tokens=4, seed=7))
    assert done.err.startswith("job-")


async def test_cancel_a_running_job(system: Up, url: dict[str, str]) -> None:
    job = system.submit("endless", "--max-tokens", "1000000")
    await until(lambda: system.job(job)["status"] == "running", "the job runs")
    for _ in range(2):
        done = run("cancel", job, **url)
        assert (done.exit_code, done.out) == (0, f"{job} cancelled\n")
    attached = run("attach", job, **url)
    assert attached.exit_code == 3
    assert attached.err == "error: The job was cancelled (cancelled_by_client).\n"


async def test_interrupted_attach_leaves_the_job_alone(system: Up) -> None:
    job = system.submit("go on", "--max-tokens", "1000000")
    with start("attach", job, TAILRACE_URL=system.url) as reader:
        assert reader.stdout is not None
        assert reader.stdout.read(1)
        reader.send_signal(signal.SIGINT)
        _, complaints = reader.communicate(timeout=30)
    assert reader.returncode == 130
    assert f"the job goes on: tailrace attach {job} --after 1-" in complaints
    assert system.job(job)["status"] == "running"
    assert run("cancel", job, "--url", system.url).exit_code == 0


async def test_status_counts_per_model(system: Up, url: dict[str, str]) -> None:
    job = system.submit("busy", "--max-tokens", "1000000")
    await until(lambda: system.job(job)["status"] == "running", "the job runs")
    done = run("status", **url)
    row = next(line for line in done.out.splitlines() if "simulated" in line)
    cells = [cell.strip() for cell in row.strip("│ ").split("│")]
    assert cells == ["simulated", "simulated", "1", "64", "1", "0"]
    run("cancel", job, **url)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["attach", "nope"], "No job with id 'nope'."),
        (["cancel", "a?b"], "No job with id 'a?b'."),
        (["submit", "hi", "--model", "nope"], "The model 'nope' does not exist."),
        (["status", "--url", "http://127.0.0.1:1"], "cannot reach http://127.0.0.1:1: [Errno 111] Connection refused"),
        (["attach", "x", "--url", "http://127.0.0.1:1"], "cannot reach http://127.0.0.1:1"),
        (["status", "--url", "nonsense"], "not an HTTP URL: nonsense"),
    ],
)
async def test_errors_are_one_line(url: dict[str, str], arguments: list[str], complaint: str) -> None:
    done = run(*arguments, **url)
    assert done.exit_code == 1
    assert done.err.startswith(f"error: {complaint}")
    assert done.err.count("\n") == 1


async def test_chat_from_a_pipe_remembers_the_conversation(url: dict[str, str]) -> None:
    done = run("chat", "--max-tokens", "3", "--system", "be brief", stdin="one\n\ntwo\n/quit\nthree\n", **url)
    assert done.exit_code == 0
    said = [{"role": "system", "content": "be brief"}]
    answers = []
    for prompt in ("one", "two"):
        said = [*said, {"role": "user", "content": prompt}]
        answers.append(answer_to({"messages": said}, 3))
        said = [*said, {"role": "assistant", "content": answers[-1]}]
    assert done.out.splitlines() == answers


async def test_ctrl_c_in_a_chat_stops_the_answer_and_ctrl_d_leaves(system: Up) -> None:
    with _terminal("chat", "--url", system.url) as terminal:
        # 1. An answer begins ...
        await terminal.expect("> ")
        terminal.type("hello\n")
        await terminal.expect("3:")
        # 2. ... and is stopped: on the engine, too.
        terminal.type("\x03")
        await terminal.expect("cancelled")
        await until(lambda: "│       0 │      0 │" in run("status", TAILRACE_URL=system.url).out, "the job has stopped")
        # 3. The program is still there.
        await terminal.expect("> ")
        terminal.type("\x03")
        await terminal.expect("> ")
        terminal.type("again\n")
        await terminal.expect("0:")
        terminal.type("\x03")
        await terminal.expect("> ")
        terminal.type("\x04")
        assert await until(lambda: terminal.process.poll() == 0, "chat leaves")


class _Terminal:
    """A program whose terminal we hold."""

    def __init__(self, process: "subprocess.Popen[bytes]", master: int) -> None:
        self.process = process
        self._master = master
        self._unread = ""

    def type(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    async def expect(self, text: str) -> None:
        """Wait until the program has shown `text` after what was expected before."""

        def shown() -> bool:
            with suppress(BlockingIOError):
                self._unread += os.read(self._master, 65_536).decode()
            return text in self._unread

        await until(shown, f"{text!r} on the terminal, not {self._unread[-200:]!r}")
        self._unread = self._unread.partition(text)[2]


@contextmanager
def _terminal(*arguments: str) -> Iterator[_Terminal]:
    master, slave = os.openpty()
    process = subprocess.Popen(
        [*TAILRACE, *arguments],
        env=environment(),
        preexec_fn=lambda: os.login_tty(slave),
        pass_fds=[slave],
    )
    os.close(slave)
    os.set_blocking(master, False)
    try:
        yield _Terminal(process, master)
    finally:
        process.kill()
        process.wait()
        os.close(master)
