"""VllmEngine: vLLM behind the Engine contract of `workers.engines.base`."""

import asyncio
import secrets
from collections.abc import AsyncGenerator
from contextlib import aclosing
from copy import deepcopy
from typing import Any

from common.events import Event
from common.settings import Settings
from workers.engines import die_with_parent
from workers.engines.base import EngineDied, GenerationRequest, Resume
from workers.engines.vllm.chunks import ChunkReader
from workers.engines.vllm.ignored import refuse_what_would_be_ignored
from workers.engines.vllm.resumable import resumable

_STOP_SECONDS = 10.0
"""How long EngineCore may take to end by itself before vLLM kills it."""


class VllmEngine:
    """Runs vLLM in this process and its EngineCore in child processes.

    `capacity`, the limits and the final `model` are known once `start` has returned. `start` must run in the
    event loop that later drives `generate`, in a thread that lives as long as the engine (see die_with_parent).
    """

    name = "vllm"
    in_process = True

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.model = settings.served_model_name or settings.model
        self.capacity = 0
        self.max_model_len: int | None = None
        self.max_prompt_chars: int | None = None
        self._llm: Any = None
        self._serving: Any = None

    async def start(self) -> None:
        """Builds the engine, 15 to 60 s for a small model; blocks the event loop meanwhile, because AsyncLLM does.

        Raises EngineDied with vLLM's own words, also for arguments that it does not know.
        """
        die_with_parent.claim_children()
        try:
            from workers.engines.vllm import setup

            args = setup.parse_args(self._settings)
            self._llm = setup.build_engine(args)
            self._serving = await setup.build_serving(self._llm, args)
        except Exception as error:
            await self.stop()
            raise EngineDied(f"vLLM did not start: {error}") from error
        self.model = args.served_model_name[0]
        self._read_limits()

    def _read_limits(self) -> None:
        config = self._llm.vllm_config
        self.max_model_len = config.model_config.max_model_len
        self.max_prompt_chars = self.max_model_len * self._llm.renderer.tokenizer.max_chars_per_token
        # With data parallelism every rank has a scheduler of its own.
        self.capacity = config.scheduler_config.max_num_seqs * config.parallel_config.data_parallel_size

    async def stop(self) -> None:
        if self._llm is None:
            return
        llm, self._llm, self._serving = self._llm, None, None
        # EngineCore drains before it ends (--shutdown-timeout), and whoever still reads gets EngineDied at once.
        await llm.abort(list(llm.output_processor.request_states), internal=True)
        # Else it would see the connection close and log a crash.
        llm.output_handler.cancel()
        # In a thread, because it waits for the children; vLLM calls it from a thread of its own, too.
        await asyncio.to_thread(llm.shutdown, _STOP_SECONDS)

    async def generate(self, request: GenerationRequest, resume: Resume | None = None) -> AsyncGenerator[Event]:
        from workers.engines.vllm.client import RequestClient
        from workers.engines.vllm.errors import translate

        if self._llm is None:
            raise EngineDied("the vLLM engine is not running")
        refuse_what_would_be_ignored(request.body)
        resume = resume or Resume()
        client = RequestClient(self._llm, resume.token_ids)
        reader = ChunkReader(client, resume.delivered)
        try:
            async with aclosing(await self._serving.open(request.kind, self._body(request), client)) as frames:
                async for frame in frames:
                    for event in reader.events(frame):
                        yield event
        except Exception as error:
            raise translate(error, request.body, dead=client.errored) from error
        finally:
            await client.close()

    def _body(self, request: GenerationRequest) -> dict[str, Any]:
        # A copy, because vLLM's validators edit what they are given, and a retry needs the original.
        body = deepcopy(request.body)
        # Unique per attempt: an abort still on its way to a recycled id would hit the new request (vLLM #23697).
        body["request_id"] = f"{request.job_id}-{secrets.token_hex(4)}"
        body["stream"] = True
        body["stream_options"] = {"include_usage": True}
        if self._llm.vllm_config.scheduler_config.policy == "priority":
            body.setdefault("priority", -request.priority)  # vLLM: lower is earlier
        return body

    def resumable(self, request: GenerationRequest) -> bool:
        return resumable(request.body)

    def running(self) -> int:
        return self._llm.get_num_unfinished_requests() if self._llm else 0

    def healthy(self) -> bool:
        return self._llm is not None and not self._llm.errored
