"""The pod's view of the fleet: which models can be asked for, refreshed from the workers' heartbeats."""

import asyncio
import logging
from dataclasses import dataclass, field

from common.connections import is_outage
from common.errors import BadRequest, NotFound, Unavailable
from common.fleet import Fleet, WorkerInfo

log = logging.getLogger(__name__)

REFRESH_SECONDS = 1.0


@dataclass
class Models:
    """`check` costs no round trip as long as the model is served."""

    fleet: Fleet
    workers: list[WorkerInfo] = field(default_factory=list)
    known: set[str] = field(default_factory=set)

    async def run(self) -> None:
        while True:
            try:
                await self.refresh()
            except Exception as error:
                if not is_outage(error):
                    log.exception("models: refresh failed")
            await asyncio.sleep(REFRESH_SECONDS)

    async def refresh(self) -> None:
        self.workers = [worker for worker in await self.fleet.workers() if not worker.draining]
        self.known = set(await self.fleet.known_models())

    def serving(self, model: str) -> list[WorkerInfo]:
        return [worker for worker in self.workers if worker.model == model]

    async def check(self, model: str, prompt_chars: int, *, can_wait: bool) -> None:
        """Whether a job for `model` may be submitted; `can_wait`: nobody hangs on the line for it.

        Raises NotFound for a model that no worker has served lately, Unavailable when none serves it now and the
        caller cannot wait, BadRequest for a prompt that cannot fit.
        """
        if not self.serving(model):
            await self.refresh()  # the worker may be younger than our last look
        serving = self.serving(model)
        if not serving:
            if model not in self.known:
                raise NotFound(f"The model {model!r} does not exist.", code="model_not_found", param="model")
            if not can_wait:
                raise Unavailable(f"No worker serves {model!r} at the moment.", code="no_worker", retry_after=5)
        limits = [worker.max_prompt_chars for worker in serving]
        longest = max((limit for limit in limits if limit is not None), default=None)
        if longest is not None and None not in limits and prompt_chars > longest:
            raise BadRequest(
                f"The prompt has {prompt_chars} characters; even of the longest tokens, more than {longest} cannot "
                "fit the model's context.",
                code="context_length_exceeded",
                param="messages",
            )
