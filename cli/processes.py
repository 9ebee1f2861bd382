"""One child process of `tailrace up`: its own session and log file; it never outlives whoever started it."""

import asyncio
import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None


@dataclass
class Child:
    """A command that can be started again after it ended. `patience`: seconds it may take to finish what it does."""

    name: str
    command: Sequence[str]
    env: Mapping[str, str]
    log: Path
    patience: float
    stop_signal: signal.Signals = signal.SIGTERM
    inherit: Sequence[int] = ()
    """File descriptors that the child keeps open."""
    _process: asyncio.subprocess.Process | None = field(default=None, init=False)
    _started_at: float = field(default=0.0, init=False)

    async def start(self) -> None:
        """Call it in the main thread: the kernel ends the child when the *thread* that created it ends."""
        with self.log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *self.command,
                env=self.env,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=self.inherit,
                # A Ctrl-C in the terminal must reach `up` alone, which then stops its children in order.
                start_new_session=True,
                preexec_fn=_die_with(os.getpid()),
            )
        self._started_at = time.monotonic()

    @property
    def pid(self) -> int:
        return self._process.pid if self._process else 0

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    @property
    def exit_code(self) -> int | None:
        return self._process.returncode if self._process else None

    @property
    def age(self) -> float:
        """Seconds since the last start."""
        return time.monotonic() - self._started_at

    @property
    def fate(self) -> str:
        """How it ended, in words."""
        code = self.exit_code or 0
        return f"exit code {code}" if code >= 0 else f"killed by {signal.Signals(-code).name}"

    async def wait(self) -> int:
        assert self._process is not None
        return await self._process.wait()

    async def stop(self, patience: float) -> bool:
        """Ask the child to end, and kill it when it has not after `patience` seconds. False: it was killed."""
        if self._process is None:
            return True
        if self.running:
            with suppress(ProcessLookupError):
                self._process.send_signal(self.stop_signal)
        try:
            async with asyncio.timeout(patience):
                await self._process.wait()
        except TimeoutError:
            self.kill()
            await self._process.wait()
            return False
        return True

    def kill(self) -> None:
        """Kill the child and everything in its process group. Does nothing once it has ended."""
        # Only while the child itself is not reaped is its pid, and so the group's id, certainly its own.
        if self.running:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)


def _die_with(parent: int) -> Callable[[], None] | None:
    """Run in the child before it executes its command: SIGKILL of the parent leaves nothing behind (Linux only)."""
    if _LIBC is None:
        return None
    prctl = _LIBC.prctl

    def set_signal() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        # The parent may have died before the call, and the kernel does not signal that any more.
        if os.getppid() != parent:
            os.kill(os.getpid(), signal.SIGKILL)

    return set_signal
