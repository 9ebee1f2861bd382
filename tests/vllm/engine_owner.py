"""A process that owns an engine, to be killed: `python -m tests.vllm.engine_owner MODEL`."""

import asyncio
import sys
from typing import Any

from common.settings import Settings
from workers.engines.vllm import VllmEngine

READY = "the engine is ready"


async def main() -> None:
    settings: dict[str, Any] = {"model": sys.argv[1], "vllm_args": "--load-format dummy"}
    engine = VllmEngine(Settings(**settings))
    await engine.start()
    print(READY, flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":  # vLLM's children import this module again
    asyncio.run(main())
