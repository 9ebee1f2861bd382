"""OpenAI's JavaScript SDK and the Vercel AI SDK. Each case of the scripts in js/ is one test here."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.clients.conftest import KEY
from tests.support.client import answer_to, chat
from tests.support.processes import Stack

JS = Path(__file__).parent / "js"
NODE = shutil.which("node")
TOKENS = 2000
"""Of the expected answer; more than any case asks for."""


def why_not() -> str:
    if not NODE:
        return "no Node: the tests of the JavaScript clients need Node 20 or newer, and `make install`"
    if not (JS / "node_modules").is_dir():
        return "the JavaScript clients are not installed: `make install` does that"
    return ""


def cases(pattern: str) -> list[tuple[str, str]]:
    found = []
    for script in sorted(JS.glob(pattern)):
        found += [(script.name, name) for name in re.findall(r'^test\("([^"]+)"', script.read_text(), re.MULTILINE)]
    return found


pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not())


def run_case(script: str, case: str, system: Stack, **more: str) -> None:
    """One process for one case. Its output is shown when it fails."""
    env = {
        "BASE_URL": f"{system.apis[0].url}/v1",
        "OTHER_URL": f"{system.apis[1].url}/v1",
        "API_KEY": KEY,
        "EXPECTED": answer_to(chat("hello", TOKENS)),
        **more,
    }
    command = [str(NODE), "--test-reporter=spec", f"--test-name-pattern=^{re.escape(case)}$", script]
    done = subprocess.run(command, cwd=JS, env=env, capture_output=True, text=True, timeout=150)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "pass 1" in done.stdout, done.stdout


@pytest.mark.parametrize(("script", "case"), cases("*.test.mjs"))
def test_javascript(system: Stack, script: str, case: str) -> None:
    run_case(script, case, system)


@pytest.mark.parametrize(("script", "case"), cases("killed-pod.mjs"))
def test_javascript_when_a_pod_is_killed(system: Stack, script: str, case: str) -> None:
    doomed = system.api()
    run_case(script, case, system, DOOMED_URL=f"{doomed.url}/v1", DOOMED_PID=str(doomed.pid))
    assert not doomed.alive
