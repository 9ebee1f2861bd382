"""`tailrace submit`, `attach` and `cancel`: one job each."""

import sys
from typing import Annotated, Any

import typer

from cli.answer import Answer
from cli.client import DEFAULT_URL, ApiKey, Client, Url

INTERRUPTED_EXIT_CODE = 130

JobId = Annotated[str, typer.Argument(metavar="ID", help="As printed by `submit`, or a chat stream's id.")]
Model = Annotated[str, typer.Option(help="Default: the only one that is served.")]
MaxTokens = Annotated[int | None, typer.Option(min=1, help="Longest answer.")]
Temperature = Annotated[float | None, typer.Option(min=0, max=2)]
Seed = Annotated[int | None, typer.Option(help="The same seed gives the same answer.")]
Priority = Annotated[int, typer.Option(min=-100, max=100, help="Higher is earlier.")]


def submit(
    prompt: Annotated[str, typer.Argument(help="What to ask; - reads it from stdin.")],
    model: Model = "",
    max_tokens: MaxTokens = None,
    temperature: Temperature = None,
    seed: Seed = None,
    priority: Priority = 0,
    attach: Annotated[bool, typer.Option("--attach", help="Stay and print the answer; the id goes to stderr.")] = False,
    url: Url = DEFAULT_URL,
    api_key: ApiKey = "",
) -> None:
    """Put a question into the queue and print the job's id."""
    client = Client(url, api_key)
    given = {"max_tokens": max_tokens, "temperature": temperature, "seed": seed}
    body: dict[str, Any] = {
        "model": client.model(model),
        "messages": [{"role": "user", "content": sys.stdin.read() if prompt == "-" else prompt}],
        "tailrace": {"priority": priority},
        **{name: value for name, value in given.items() if value is not None},
    }
    job_id = client.submit(body)
    print(job_id, file=sys.stderr if attach else sys.stdout)
    if attach:
        _show(client, job_id)


def attach(
    job_id: JobId,
    after: Annotated[str | None, typer.Option(metavar="EVENT_ID", help="Only what follows this event.")] = None,
    url: Url = DEFAULT_URL,
    api_key: ApiKey = "",
) -> None:
    """Print a job's answer as it comes, from its beginning, however often the connection breaks.

    Exit code 0: the answer is there (perhaps cut at its limit); 1: failed; 3: cancelled; 130: Ctrl-C, the job goes on.
    """
    client = Client(url, api_key)
    client.job(job_id)  # a wrong id or URL is an error at once; only what has begun to stream is tried again
    _show(client, job_id, after)


def cancel(job_id: JobId, url: Url = DEFAULT_URL, api_key: ApiKey = "") -> None:
    """Stop a job, or take it out of the queue. Cancelling twice is no error."""
    Client(url, api_key).cancel(job_id)
    print(f"{job_id} cancelled")


def _show(client: Client, job_id: str, after: str | None = None) -> None:
    answer = Answer(cursor=after)
    try:
        answer.show(client.follow(job_id, after))
    except KeyboardInterrupt:
        position = f" --after {answer.cursor}" if answer.cursor else ""
        print(f"\nthe job goes on: tailrace attach {job_id}{position}", file=sys.stderr)
        raise typer.Exit(INTERRUPTED_EXIT_CODE) from None
    if sys.stdout.isatty():
        print()
    answer.check()
    print(answer.summary, file=sys.stderr)
