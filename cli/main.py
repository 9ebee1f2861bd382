"""`tailrace`: start a pod, a worker, or everything at once; talk to a running system."""

import os
import sys

import typer
from pydantic import ValidationError

from cli.chat import chat
from cli.failure import Failure, report
from cli.jobs import attach, cancel, submit
from cli.keys import keys
from cli.status import status
from cli.up import up
from common import logs
from common.settings import Settings, describe

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
for command in (up, chat, submit, attach, cancel, status):
    app.command()(command)
app.add_typer(keys, name="keys")


@app.command()
def api() -> None:
    """Start one API pod, configured by TAILRACE_* alone."""
    from api.server import serve

    settings = Settings()
    logs.setup(settings.log_level, f"api[{os.getpid()}]")
    try:
        serve(settings)
    except (ValueError, OSError) as error:
        raise Failure(str(error)) from error


@app.command()
def worker() -> None:
    """Start one worker, configured by TAILRACE_* alone."""
    from workers.engines import make_engine
    from workers.main import WorkerProcess

    settings = Settings()
    logs.setup(settings.log_level, f"worker[{os.getpid()}]")
    raise typer.Exit(WorkerProcess(settings, make_engine(settings)).run())


def main() -> None:
    try:
        app()
    except ValidationError as error:
        report(describe(error))
        sys.exit(1)
    except Failure as error:
        report(str(error))
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
