"""What the user can act on. Commands raise `Failure`; `cli.main` turns it into one line and the exit code."""

import sys


class Failure(Exception):
    """The message is one clear line: what is wrong, and what to do where that is not obvious."""

    def __init__(self, message: str, exit_code: int = 1) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def report(message: str) -> None:
    print(f"error: {message}", file=sys.stderr)
