"""Importing the engine is cheap, so that every process may do it."""

import subprocess
import sys


def test_importing_the_engine_does_not_import_vllm() -> None:
    code = "import sys, workers.engines.vllm; sys.exit('vllm' in sys.modules or 'torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
