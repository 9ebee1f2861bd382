"""The contract between a worker and an engine; everything the worker knows about engines is in this file."""

from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from common.events import Event


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One job as the engine sees it.

    `body` is the OpenAI request body as the client sent it (without the `tailrace` object, `stream` and
    `stream_options`), because validation and meaning of every parameter are the engine's.
    """

    job_id: str
    kind: Literal["chat", "completion"]
    body: dict[str, Any]
    priority: int = 0


@dataclass(frozen=True, slots=True)
class Resume:
    """What earlier attempts already put into the log, so that the next one continues after it.

    `token_ids` are the generated ids so far (choice 0). `deltas` are the logged deltas, merged into one,
    so that an engine which replays the ids knows what text, reasoning and tool-call pieces readers have.
    """

    token_ids: list[int] = field(default_factory=list)
    delivered: Event = field(default_factory=dict)


class EngineRefused(Exception):
    """The engine rejects the request itself (a client error): `status` is the HTTP status to answer."""

    def __init__(self, message: str, *, status: int = 400, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message, self.status, self.param, self.code = message, status, param, code


class EngineFailed(Exception):
    """This request failed in the engine, and would fail again elsewhere; the engine itself is well."""


class EngineDied(Exception):
    """The engine is gone or broken: its jobs belong to another worker, and this one must restart it or exit."""


class Engine(Protocol):
    """A source of tokens.

    `generate` yields `delta` events and, last, one `usage` event; each choice's last delta carries its
    `finish_reason`. An earlier `usage` event may tell the prompt's size, for answers that are cut short.
    Closing the iterator aborts the request in the engine and frees its slot. Raises EngineRefused,
    EngineFailed or EngineDied, nothing else.
    """

    name: str
    """`vllm`, `simulated` or `openai`."""
    model: str
    """Id under which the model is served."""
    capacity: int
    """Requests that run at once (vLLM: max_num_seqs)."""
    in_process: bool
    """Whether silence of all its requests means that it hangs; behind a URL it may just be busy with others'."""
    max_model_len: int | None
    """Context length in tokens, prompt and answer together; None when unknown."""
    max_prompt_chars: int | None
    """A prompt of more characters than this cannot fit, whatever it says; None when unknown."""

    async def start(self) -> None:
        """Returns when the engine can serve. Raises EngineDied when it cannot be started."""

    async def stop(self) -> None:
        """Aborts what runs and ends every child process."""

    def generate(self, request: GenerationRequest, resume: Resume | None = None) -> AsyncGenerator[Event]: ...

    def resumable(self, request: GenerationRequest) -> bool:
        """Whether an answer to `request` can be continued from its token ids by another attempt."""

    def running(self) -> int:
        """The engine's own count of requests it holds, waiting ones included."""

    def healthy(self) -> bool:
        """False once the engine cannot serve any more."""
