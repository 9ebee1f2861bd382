"""`tailrace up` and the other commands as real processes."""

import contextlib
import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil

from tests.support.processes import free_port, lives
from tests.support.wait import until

TAILRACE = (sys.executable, "-P", "-m", "cli.main")


@dataclass(frozen=True)
class Finished:
    exit_code: int
    out: str
    err: str


def environment(**more: str) -> dict[str, str]:
    """Without the developer's own settings, and with plain output."""
    mine = {name: value for name, value in os.environ.items() if not name.startswith("TAILRACE_")}
    return {**mine, "NO_COLOR": "1", "COLUMNS": "200", "PYTHONUNBUFFERED": "1", **more}


def run(*arguments: str, stdin: str = "", **env: str) -> Finished:
    """One command, to its end."""
    done = subprocess.run(
        [*TAILRACE, *arguments], input=stdin, capture_output=True, text=True, timeout=120, env=environment(**env)
    )
    assert "Traceback" not in done.stderr, done.stderr
    return Finished(done.returncode, done.stdout, done.stderr)


def start(*arguments: str, **env: str) -> "subprocess.Popen[str]":
    """One command that goes on; the caller ends it."""
    return subprocess.Popen(
        [*TAILRACE, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(**env),
    )


class Up:
    """One `tailrace up` on the simulated engine. `out` and `err` are what it has printed so far."""

    def __init__(self, data: Path, *options: str, apis: int = 1, **env: str) -> None:
        self.data = data
        self.port = free_port(row=apis)
        self.urls = [f"http://127.0.0.1:{self.port + number}" for number in range(apis)]
        self._folder = data.with_name(f"{data.name}-output-{self.port}")
        self._folder.mkdir(parents=True)
        command = [*TAILRACE, "up", "--engine", "simulated", "--data-dir", str(data), "--port", str(self.port)]
        with (self._folder / "out").open("wb") as out, (self._folder / "err").open("wb") as err:
            self.process = psutil.Popen(
                [*command, "--apis", str(apis), *options],
                stdout=out,
                stderr=err,
                start_new_session=True,
                env=environment(**{"TAILRACE_SIM_ITL_MS": "5", "TAILRACE_SIM_TTFT_MS": "5", **env}),
            )

    @property
    def url(self) -> str:
        return self.urls[0]

    @property
    def out(self) -> str:
        return (self._folder / "out").read_text()

    @property
    def err(self) -> str:
        return (self._folder / "err").read_text()

    async def ready(self) -> "Up":
        def is_ready() -> bool:
            assert self.process.poll() is None, self.err
            return len(self.out.splitlines()) == 2

        await until(is_ready, "tailrace up is ready")
        return self

    def children(self) -> list[psutil.Process]:
        return list(self.process.children(recursive=True))

    def child(self, command: str) -> psutil.Process:
        """The first child whose command line has `command` in it."""
        return next(child for child in self.children() if command in command_of(child))

    async def ended(self) -> int:
        await until(lambda: self.process.poll() is not None, "tailrace up ends")
        return int(self.process.returncode)

    async def stop(self, signum: signal.Signals = signal.SIGINT) -> int:
        """Signal `up` and wait for its end; returns its exit code. Fails when a child outlives it."""
        children = self.children()
        self.process.send_signal(signum)
        code = await self.ended()
        # What a SIGKILL orphans is killed by the kernel, but reaped by somebody else in their own time.
        await until(lambda: not any(lives(child) for child in children), "all children have ended")
        return code

    def clean_up(self) -> None:
        """Whatever a failed test left."""
        if self.process.poll() is None:
            children = self.children()
            for process in (self.process, *children):
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            self.process.wait()

    def submit(self, prompt: str, *options: str) -> str:
        done = run("submit", prompt, *options, TAILRACE_URL=self.url)
        assert done.exit_code == 0, done.err
        assert re.fullmatch(r"job-\w+\n", done.out)
        return done.out.strip()

    def job(self, job_id: str) -> dict[str, object]:
        response = httpx.get(f"{self.url}/v1/jobs/{job_id}", timeout=60)
        assert response.status_code == 200, response.text
        job: dict[str, object] = response.json()
        return job


def command_of(process: psutil.Process) -> str:
    """Empty when it has ended meanwhile."""
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return ""
