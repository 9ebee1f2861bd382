"""`tailrace`: start a pod, a worker, or everything at once; talk to a running system."""

import os
import sys

import typer
from pydantic import ValidationError

from cli.client_commands import attach, cancel, chat, status, submit
from cli.keys import keys
from cli.up import up
from common import logs
from common.settings import Settings, describe

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
app.command()(up)
app.command()(chat)
app.command()(submit)
app.command()(attach)
app.command()(cancel)
app.command()(status)
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
        raise typer.Exit(fail(str(error))) from error


@app.command()
def worker() -> None:
    """Start one worker, configured by TAILRACE_* alone."""
    from workers.main import WorkerProcess

    settings = Settings()
    logs.setup(settings.log_level, f"worker[{os.getpid()}]")
    raise typer.Exit(WorkerProcess(settings).run())


def fail(message: str) -> int:
    """One clear line on stderr; returns the exit code."""
    print(f"error: {message}", file=sys.stderr)
    return 1


def main() -> None:
    try:
        app()
    except ValidationError as error:
        sys.exit(fail(describe(error)))
