"""One `tailrace up` for all tests that only use it, and a way to start others."""

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from tests.cli.support import Up

StartUp = Callable[..., Up]


@pytest.fixture(scope="session")
async def system(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Up]:
    """Two API processes and one worker; nobody kills anything here."""
    up = Up(tmp_path_factory.mktemp("up") / "data", apis=2)
    try:
        yield await up.ready()
    finally:
        up.clean_up()


@pytest.fixture
def start_up(tmp_path: Path) -> Iterator[StartUp]:
    """Start a system of one's own: `start_up("--workers", "2")`, again and again on the same data."""
    started: list[Up] = []

    def start(*options: str, apis: int = 1, **env: str) -> Up:
        started.append(Up(tmp_path / "data", *options, apis=apis, **env))
        return started[-1]

    yield start
    for up in started:
        up.clean_up()
