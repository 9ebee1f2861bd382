"""A short chaos run. `make chaos SEED=… MINUTES=…` is the long one."""

import re
import signal
import subprocess
import sys

import pytest

from tests.support.processes import ROOT

LAST_LINE = r"chaos: seed=7 jobs=(\d+) takeovers=(\d+) tokens=\d+ lost=0 doubled=0 reordered=0 hung=0 leaked=0"


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_nothing_is_lost_doubled_reordered_hung_or_leaked() -> None:
    """deer-flow#3932, arq#343, llm-d-async#404 and their like, all at once and with real processes.

    A process of its own, so that the command itself is tested and its load of streams is not in pytest's event loop.
    """
    command = [sys.executable, "-m", "tests.chaos", "--seed", "7", "--minutes", "0.3"]
    run = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        out, _ = run.communicate(timeout=300)
    except subprocess.TimeoutExpired:
        run.send_signal(signal.SIGTERM)  # it ends its processes
        out, _ = run.communicate(timeout=60)
    last = out.splitlines()[-1] if out else ""
    found = re.fullmatch(LAST_LINE, last)
    assert found, out
    assert run.returncode == 0
    assert int(found[1]) > 50, out
    assert int(found[2]) > 0, out
