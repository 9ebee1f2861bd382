"""Makes vLLM's processes end with the worker that started them.

A worker that is SIGKILLed (out of memory, `kubectl delete --force`) cannot shut vLLM down, and vLLM's EngineCore
then lives on and holds the GPU, so that the replacement cannot start. vLLM loads the entry points of the group
`vllm.general_plugins` in each of its processes; this one asks the kernel to kill the process when its parent dies.
It works only where the project is installed, because entry points belong to installed packages.
"""

import ctypes
import logging
import multiprocessing
import os
import signal
import sys
from importlib.metadata import entry_points

logger = logging.getLogger(__name__)

PLUGIN = "tailrace_die_with_parent"
"""Name of the entry point in pyproject.toml."""

OWNER_VARIABLE = "TAILRACE_ENGINE_OWNER"
"""Pid of the process that owns the engine; inherited by the processes that vLLM starts for it."""

_PR_SET_PDEATHSIG = 1


def claim_children() -> None:
    """Marks this process as the owner: vLLM processes started from now on end with it.

    Call it in the thread that builds the engine, and let that thread live as long as the engine: the kernel sends
    the signal when the *thread* that created the child ends (prctl(2)), not the process.
    """
    os.environ[OWNER_VARIABLE] = str(os.getpid())
    if not _vllm_will_load_us():
        logger.warning(
            "vLLM cannot load the plugin %s (tailrace is not installed, or VLLM_PLUGINS leaves it out): "
            "SIGKILL of this worker will leave vLLM's processes running",
            PLUGIN,
        )


def _vllm_will_load_us() -> bool:
    chosen = os.environ.get("VLLM_PLUGINS")
    return bool(entry_points(group="vllm.general_plugins", name=PLUGIN)) and (
        chosen is None or PLUGIN in chosen.split(",")
    )


def register() -> None:
    """The plugin: does nothing in the owner itself, nor under a vLLM server that Tailrace did not start."""
    owner = os.environ.get(OWNER_VARIABLE)
    parent = multiprocessing.parent_process()
    if sys.platform != "linux" or parent is None or owner in (None, str(os.getpid())):
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    # The parent may have died before the call, and the kernel does not signal that any more.
    if os.getppid() != parent.pid:
        os.kill(os.getpid(), signal.SIGKILL)
