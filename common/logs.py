"""One log format for every process: time, level, process, message with the job id in it."""

import logging
import sys


def setup(level: str, process: str) -> None:
    logging.basicConfig(
        level=level.upper(),
        stream=sys.stderr,
        format=f"%(asctime)s %(levelname).1s {process} %(name)s: %(message)s",
        force=True,
    )
    # These log every request or job on info; ours say the same with job ids.
    for noisy in ("httpx", "httpcore", "arq", "sse_starlette", "asyncio"):
        logging.getLogger(noisy).setLevel(max(logging.WARNING, logging.getLogger().level))
