"""`tailrace chat`: a conversation in the terminal."""

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Annotated, Any

import typer

from cli.answer import Answer
from cli.client import DEFAULT_URL, ApiKey, Client, Url
from cli.failure import Failure, report
from cli.jobs import MaxTokens, Model, Temperature

GRACE_SECONDS = 30.0
"""How long an answer goes on after this program has vanished: time enough to reconnect, not to waste a GPU."""
QUIT = "/quit"


def chat(
    model: Model = "",
    system: Annotated[str, typer.Option(help="How the model should behave.")] = "",
    max_tokens: MaxTokens = None,
    temperature: Temperature = None,
    url: Url = DEFAULT_URL,
    api_key: ApiKey = "",
) -> None:
    """Talk with a model. Ctrl-C stops an answer, Ctrl-D or /quit leaves."""
    client = Client(url, api_key)
    options = {"model": client.model(model), "max_tokens": max_tokens, "temperature": temperature}
    conversation = Conversation(client, {name: value for name, value in options.items() if value is not None}, system)
    for said in _prompts(f"{options['model']}; Ctrl-C stops an answer, Ctrl-D leaves"):
        try:
            conversation.ask(said)
        except KeyboardInterrupt:  # before the answer began, or once more because stopping it took too long
            print()
        except Failure as failure:
            report(str(failure))


class Conversation:
    """Remembers what was said. A question without an answer is forgotten, so that it can be asked again."""

    def __init__(self, client: Client, options: dict[str, Any], system: str = "") -> None:
        self._client = client
        self._options = options
        self.messages = [{"role": "system", "content": system}] if system else []

    def ask(self, said: str) -> None:
        """Show the answer to `said`. Raises Failure when there is none."""
        question = {"role": "user", "content": said}
        job_id = self._client.submit(
            {
                **self._options,
                "messages": [*self.messages, question],
                "tailrace": {"on_disconnect": "cancel", "grace_seconds": GRACE_SECONDS},
            }
        )
        answer = Answer()
        with _on_interrupt(lambda: self._cancel(job_id)):
            answer.show(self._client.follow(job_id))
        print()
        if answer.text:
            self.messages += [question, {"role": "assistant", "content": answer.text}]
        if answer.status == "failed":
            answer.check()
        if answer.status != "completed":
            print(answer.summary, file=sys.stderr)

    def _cancel(self, job_id: str) -> None:
        try:
            self._client.cancel(job_id)
        except Failure as failure:
            report(str(failure))


@contextmanager
def _on_interrupt(action: Callable[[], None]) -> Iterator[None]:
    """The first Ctrl-C runs `action` in a thread and lets the main program go on; a second one interrupts it."""

    def first(signum: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        # Not here: the handler interrupts the HTTP client, which may hold the lock that `action` needs.
        threading.Thread(target=action, name="cancel", daemon=True).start()

    previous = signal.signal(signal.SIGINT, first)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)


def _prompts(greeting: str) -> Iterator[str]:
    """What the user types, line by line, until Ctrl-D or /quit. Ctrl-C here drops the line."""
    on_terminal = sys.stdin.isatty()
    if on_terminal:
        with suppress(ImportError):
            import readline  # noqa: F401  gives input() line editing and a history
        print(greeting)
    while True:
        try:
            said = input("> " if on_terminal else "").strip()
        except KeyboardInterrupt:
            print()
            continue
        except EOFError:
            if on_terminal:
                print()
            return
        if said == QUIT:
            return
        if said:
            yield said
