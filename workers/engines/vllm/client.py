"""The engine client that vLLM's serving layer sees: AsyncLLM, for one request, with a memory."""

from collections import defaultdict
from collections.abc import AsyncGenerator
from typing import Any

from vllm.sampling_params import RequestOutputKind

from workers.engines.base import EngineDied
from workers.engines.vllm.continuation import Continuation


class RequestClient:
    """Stands in for AsyncLLM while one request is served.

    It remembers two things that the serving layer does not hand on: which token ids are behind its chunks, and the
    exception that it turned into an error chunk. With `recorded` ids it continues after them instead of starting.
    """

    def __init__(self, llm: Any, recorded: list[int]) -> None:
        self._llm = llm
        self._recorded = recorded
        self._request_ids: list[str] = []
        self.prompt_tokens = 0
        self._new_ids: defaultdict[int, list[int]] = defaultdict(list)
        self.replaying = bool(recorded)
        """True while the serving layer is fed recorded ids."""
        self.failure: Exception | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._llm, name)

    def generate(self, prompt: Any, params: Any, request_id: str, **options: Any) -> AsyncGenerator[Any, None]:
        # The serving layer calls this once per prompt and numbers choices prompt by prompt.
        first_choice = len(self._request_ids) * params.n
        self._request_ids.append(request_id)
        self.prompt_tokens += len(prompt.get("prompt_token_ids") or ())
        if self._recorded:
            outputs = self._continued(prompt, params, request_id, options)
        else:
            outputs = self._llm.generate(prompt, params, request_id, **options)
        return self._watched(outputs, params, first_choice)

    async def _continued(
        self, prompt: Any, params: Any, request_id: str, options: dict[str, Any]
    ) -> AsyncGenerator[Any, None]:
        continuation = await Continuation.create(self._llm, prompt, params, request_id, self._recorded)
        async for output in continuation.replay():
            yield output
        self.replaying = False
        async for output in continuation.live(options):
            yield output

    async def _watched(
        self, outputs: AsyncGenerator[Any, None], params: Any, first_choice: int
    ) -> AsyncGenerator[Any, None]:
        # Beam search asks for final outputs, of beams that may be dropped: nothing to record.
        recording = params.output_kind == RequestOutputKind.DELTA
        try:
            async for output in outputs:
                for choice in output.outputs:
                    # Nobody here aborts and then goes on reading, so this is an engine that shuts down.
                    if choice.finish_reason == "abort":
                        raise EngineDied("vLLM aborted the request because it is shutting down")
                    if recording and not self.replaying:
                        self._new_ids[first_choice + choice.index] += choice.token_ids
                yield output
        except Exception as error:
            self.failure = error
            raise

    def take_ids(self, choice: int) -> list[int]:
        """The ids generated for `choice` since the last call."""
        return self._new_ids.pop(choice, [])

    def choices_left(self) -> list[int]:
        """Choices with ids that nobody has taken."""
        return sorted(self._new_ids)

    async def close(self) -> None:
        """Aborts what still runs in the engine; does nothing after a normal end."""
        # By id: the serving layer's generators would be closed only when they are collected.
        await self._llm.abort(self._request_ids)
