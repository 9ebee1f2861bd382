"""Goes on with an answer that another engine began: its token ids are the state, everything else follows from them.

The serving layer is fed the recorded ids first, one output per token, and then what the engine generates after
prompt + recorded ids. An OutputProcessor of our own sees all of it as one answer. That is vLLM's own code for
detokenizing and for stop strings, so characters whose bytes, and stop strings whose letters, lie on both sides of
the cut come out as if there had been none.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any, Self

from vllm.v1.core.sched.utils import check_stop
from vllm.v1.engine import FINISH_REASON_STRINGS, EngineCoreOutput, EngineCoreRequest, FinishReason
from vllm.v1.engine.output_processor import OutputProcessor
from vllm.v1.request import Request

from workers.engines.base import EngineFailed

_REPLAY_BATCH = 64
"""Tokens replayed before other requests get a turn in the event loop."""


class Continuation:
    """`replay` yields the outputs of the recorded ids, `live` those after them. Use `create`."""

    def __init__(self, llm: Any, prompt: Any, params: Any, request: EngineCoreRequest, recorded: list[int]) -> None:
        self._llm = llm
        self._prompt = prompt
        self._params = params
        self._request = request
        self._recorded = recorded
        self._finished = False
        self._processor = OutputProcessor(llm.renderer.tokenizer, log_stats=False)
        self._processor.add_request(request, prompt.get("prompt"))

    @classmethod
    async def create(cls, llm: Any, prompt: Any, params: Any, request_id: str, recorded: list[int]) -> Self:
        """Raises EngineFailed for requests that have no continuation (see resumable.py)."""
        if params.structured_outputs is not None or params.n != 1 or "prompt_token_ids" not in prompt:
            raise EngineFailed("this request cannot be continued from its token ids")
        tasks = await llm.get_supported_tasks()
        request = llm.input_processor.process_inputs(request_id, prompt, params, tasks)
        llm.input_processor.assign_request_id(request)
        # Our processor is given no logprobs (`live` passes the engine's on) and must not buffer tokens.
        request.sampling_params.logprobs = None
        request.sampling_params.logprob_token_ids = None
        request.sampling_params.stream_interval = None
        return cls(llm, prompt, params, request, recorded)

    async def replay(self) -> AsyncIterator[Any]:
        """One output per token: tool and reasoning parsers are written for streams that come like that."""
        end = self._end_of_recorded()
        last = len(self._recorded) - 1
        for position, token_id in enumerate(self._recorded):
            finish_reason, stop_reason = end if position == last else (None, None)
            output = self._advance([token_id], finish_reason, stop_reason, [None])
            yield output
            if output.finished:
                return
            if position % _REPLAY_BATCH == _REPLAY_BATCH - 1:
                await asyncio.sleep(0)

    def _end_of_recorded(self) -> tuple[FinishReason | None, int | str | None]:
        """Why generation ends after the recorded ids, by the scheduler's own rules."""
        request = Request.from_engine_core_request(self._request, None)
        request.append_output_token_ids(self._recorded)
        if check_stop(request, self._llm.model_config.max_model_len):
            return request.get_finished_reason(), request.stop_reason
        return None, None

    async def live(self, options: dict[str, Any]) -> AsyncIterator[Any]:
        """What the engine generates after the recorded ids; nothing when they are already a whole answer."""
        if self._finished:
            return
        prompt = {**self._prompt, "prompt_token_ids": [*self._prompt["prompt_token_ids"], *self._recorded]}
        outputs = self._llm.generate(prompt, self._remaining_params(), self._request.external_req_id, **options)
        async with aclosing(outputs):
            async for engine_output in outputs:
                (new,) = engine_output.outputs
                finish_reason = new.finish_reason and FinishReason(FINISH_REASON_STRINGS.index(new.finish_reason))
                output = self._advance(list(new.token_ids), finish_reason, new.stop_reason, new.logprobs)
                yield output
                if output.finished:  # perhaps by a stop string that only our processor has seen whole
                    return

    def _remaining_params(self) -> Any:
        params = self._params.clone()
        params.max_tokens = self._request.sampling_params.max_tokens - len(self._recorded)
        params.min_tokens = max(0, params.min_tokens - len(self._recorded))
        params.stop = []
        return params

    def _advance(self, ids: list[int], finish_reason: Any, stop_reason: Any, logprobs: Any) -> Any:
        step = EngineCoreOutput(self._request.request_id, ids, finish_reason=finish_reason, stop_reason=stop_reason)
        (output,) = self._processor.process_outputs([step]).request_outputs
        (new,) = output.outputs
        if logprobs is not None:
            new.logprobs = logprobs[: len(new.token_ids)]
        self._finished = output.finished
        return output
