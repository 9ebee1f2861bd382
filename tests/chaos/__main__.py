"""`python -m tests.chaos --seed N --minutes M`"""

import argparse
import asyncio
import signal
import sys

from tests.chaos.harness import Harness


async def main(options: argparse.Namespace) -> int:
    harness = Harness(
        options.seed,
        options.minutes,
        options.pods,
        options.workers,
        options.clients,
        keep_logs=options.keep_logs,
    )
    running = asyncio.current_task()
    assert running is not None
    # So that whoever ends this early leaves no processes behind.
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, running.cancel)
    return await harness.run()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="chaos", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--pods", type=int, default=2)
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--keep-logs", action="store_true", help="also when nothing was found")
    sys.exit(asyncio.run(main(parser.parse_args())))
