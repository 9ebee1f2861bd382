"""From settings to a running AsyncLLM and vLLM's serving objects. Imported only by `VllmEngine.start`."""

import copy
import io
import math
import os
import shlex
from argparse import Namespace
from collections.abc import AsyncGenerator
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any, Literal

import torch
from starlette.datastructures import State
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.entrypoints.launchers.api_server.app_state import init_app_state
from vllm.entrypoints.launchers.cli_args import make_arg_parser, validate_parsed_serve_args
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.entrypoints.serve.engine.protocol import ErrorResponse
from vllm.entrypoints.serve.utils.api_utils import cli_env_setup
from vllm.platforms import current_platform
from vllm.reasoning import ReasoningParserManager
from vllm.tool_parsers import ToolParserManager
from vllm.usage.usage_lib import UsageContext
from vllm.utils.argparse_utils import FlexibleArgumentParser
from vllm.v1.engine.async_llm import AsyncLLM

from common.settings import Settings
from workers.engines.vllm import parsers
from workers.engines.vllm.client import RequestClient
from workers.engines.vllm.errors import refused

_CPU_MAX_MODEL_LEN = 2048


def parse_args(settings: Settings) -> Namespace:
    """All arguments of `vllm serve`; those in TAILRACE_VLLM_ARGS win over our defaults.

    Raises ValueError with argparse's words for an argument that vLLM does not know or accept.
    """
    cli_env_setup()
    args = _parse(shlex.split(settings.vllm_args), _defaults(settings))
    args.model = args.model_tag or args.model
    if not args.model:
        raise ValueError("no model: set TAILRACE_MODEL")
    if args.served_model_name is None:
        args.served_model_name = [settings.served_model_name or _name_of(args.model)]
    model_config = AsyncEngineArgs.from_cli_args(args).create_model_config()
    parsers.choose(args, model_config)
    validate_parsed_serve_args(args)
    if current_platform.is_cpu() and args.max_model_len is None:
        args.max_model_len = min(model_config.max_model_len, _CPU_MAX_MODEL_LEN)
    return args


def _defaults(settings: Settings) -> dict[str, Any]:
    # A signal to the whole process group (Ctrl-C, systemd) reaches EngineCore too, which would abort what runs.
    common = {"model": settings.model, "shutdown_timeout": math.ceil(settings.drain_seconds), **parsers.UNDECIDED}
    return common | _cpu_defaults() if current_platform.is_cpu() else common


def _cpu_defaults() -> dict[str, Any]:
    # vLLM leaves one core to its scheduler; of two cores that is half the machine.
    if len(os.sched_getaffinity(0)) <= 2:
        os.environ.setdefault("VLLM_CPU_NUM_OF_RESERVED_CPU", "0")
    return {
        "max_num_seqs": 16,
        "kv_cache_memory_bytes": 1 << 30,
        # Compiling a 135M model took 60 s of an 80 s start and gained nothing measurable per token.
        "enforce_eager": True,
        # Without instructions for it bfloat16 is 3 to 6 times slower than float32, with them a third faster.
        "dtype": "auto" if torch.cpu._is_avx512_bf16_supported() else "float32",
    }


def _name_of(model: str) -> str:
    return Path(model).resolve().name if Path(model).is_dir() else model


def _parse(argv: list[str], defaults: dict[str, Any]) -> Namespace:
    parser = make_arg_parser(FlexibleArgumentParser(prog="TAILRACE_VLLM_ARGS"))
    parser.set_defaults(**defaults)  # not prepended to argv, where they would win over a --config file
    complaint = io.StringIO()
    try:
        with redirect_stderr(complaint):
            args: Namespace = parser.parse_args(argv)
    except SystemExit as error:  # argparse prints the usage, then one line that says what is wrong
        raise ValueError(complaint.getvalue().strip().rpartition("\n")[2]) from error
    return args


def build_engine(args: Namespace) -> Any:
    """An AsyncLLM for the running event loop; blocks until the model is loaded."""
    if args.tool_parser_plugin:
        ToolParserManager.import_tool_parser(args.tool_parser_plugin)
    if args.reasoning_parser_plugin:
        ReasoningParserManager.import_reasoning_parser(args.reasoning_parser_plugin)
    engine_args = AsyncEngineArgs.from_cli_args(args)
    return AsyncLLM.from_engine_args(engine_args, usage_context=UsageContext.OPENAI_API_SERVER)


async def build_serving(llm: Any, args: Namespace) -> "Serving":
    """vLLM's serving objects, made by vLLM's own code, so that every serving argument means what it says."""
    state = State()
    await init_app_state(llm, state, args, await llm.get_supported_tasks())
    return Serving(state)


class Serving:
    """Opens one SSE stream per request on vLLM's chat or completion serving object."""

    def __init__(self, state: State) -> None:
        self._chat = state.openai_serving_chat
        self._completion = state.openai_serving_completion

    async def open(
        self, kind: Literal["chat", "completion"], body: dict[str, Any], client: RequestClient
    ) -> AsyncGenerator[str, None]:
        """Raises EngineRefused, pydantic's ValidationError or vLLM's own errors for a request that cannot run."""
        if kind == "chat":
            chat = self._with_client(self._chat, client)
            answer = await chat.create_chat_completion(ChatCompletionRequest.model_validate(body))
        else:
            completion = self._with_client(self._completion, client)
            answer = await completion.create_completion(CompletionRequest.model_validate(body))
        if isinstance(answer, ErrorResponse):
            raise refused(answer)
        frames: AsyncGenerator[str, None] = answer
        return frames

    @staticmethod
    def _with_client(serving: Any, client: RequestClient) -> Any:
        # A shallow copy gives each request a client of its own; the serving object keeps no other state.
        mine = copy.copy(serving)
        mine.engine_client = client
        return mine
