"""A worker that is SIGKILLed takes vLLM's processes with it."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.support.processes import lives
from tests.support.wait import until
from tests.vllm.engine_owner import READY

pytestmark = [pytest.mark.vllm, pytest.mark.slow]


@pytest.fixture
def owner(small_model: Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "tests.vllm.engine_owner", str(small_model)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        yield process
        process.kill()


async def test_sigkill_leaves_no_child(owner: subprocess.Popen[str]) -> None:
    assert owner.stdout is not None
    assert any(READY in line for line in owner.stdout), "the owner ended before its engine was ready"
    children = psutil.Process(owner.pid).children(recursive=True)
    assert len(children) >= 2, "EngineCore and its worker"

    owner.kill()
    owner.wait()

    # Without the plugin they live on for good, so the limit only has to be shorter than the test's.
    try:
        await until(lambda: not any(lives(child) for child in children), "all children are gone")
    finally:
        for child in filter(lives, children):
            child.kill()
