"""Progress of the long steps on stderr: a live line on a terminal, a plain line now and then elsewhere."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from rich.console import Console
from rich.markup import escape
from rich.status import Status

LIVE_PERIOD_SECONDS = 0.2
PLAIN_PERIOD_SECONDS = 10.0


class Progress:
    """Steps follow one another. stdout stays free for the result."""

    def __init__(self) -> None:
        self._console = Console(stderr=True, highlight=False)

    def tell(self, line: str) -> None:
        self._console.print(escape(line), soft_wrap=True)

    @asynccontextmanager
    async def step(self, what: str, detail: Callable[[], str] = lambda: "") -> AsyncIterator[None]:
        """Show that `what` takes its time; `detail` says what it is at. A step that fails leaves no line."""
        begun = time.monotonic()
        show = self._show_live if self._console.is_terminal else self._show_plain
        showing = asyncio.create_task(show(what, begun, detail), name="progress")
        try:
            yield
        finally:
            showing.cancel()
            await asyncio.gather(showing, return_exceptions=True)
        self._console.print(f"{escape(what)} [dim]{time.monotonic() - begun:.1f} s[/]")

    async def _show_live(self, what: str, begun: float, detail: Callable[[], str]) -> None:
        with Status("", console=self._console) as status:
            while True:
                room = max(20, self._console.width - len(what) - 15)
                line = f"{escape(what)} {time.monotonic() - begun:.0f} s  [dim]{escape(detail()[:room])}[/]"
                status.update(line)
                await asyncio.sleep(LIVE_PERIOD_SECONDS)

    async def _show_plain(self, what: str, begun: float, detail: Callable[[], str]) -> None:
        while True:
            await asyncio.sleep(PLAIN_PERIOD_SECONDS)
            self.tell(f"{what} ... {time.monotonic() - begun:.0f} s  {detail()}".rstrip())
