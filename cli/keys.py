"""`tailrace keys`: API keys. The server keeps only their digests, so a lost key cannot be shown again."""

import re
import secrets
from typing import Annotated

import typer

from api.auth import digest_of
from cli.failure import Failure

keys = typer.Typer(no_args_is_help=True, help="Make API keys.")

_NAME = re.compile(r"[A-Za-z0-9_.@-]+")
"""No colon, comma or space: they separate keys where these are configured."""


@keys.callback()
def _group() -> None:
    # Typer turns a group with a single command into that command, unless it has a callback.
    pass


@keys.command()
def new(name: Annotated[str, typer.Argument(help="Who will use the key; owns the jobs made with it.")]) -> None:
    """Print a new key, once, and the line by which the server knows it."""
    if not _NAME.fullmatch(name):
        raise Failure(f"a key's name has letters, digits and _ . @ - only, not {name!r}")
    key = f"tr-{secrets.token_urlsafe(32)}"
    print(f"key, shown only now:  {key}")
    print(f"for the server, in TAILRACE_API_KEYS or the keys file:\n{name}:{digest_of(key)}")
