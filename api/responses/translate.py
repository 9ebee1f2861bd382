"""From a response's request to the job: the chat body that the engine gets, and what is kept beside it."""

from typing import Any

from api.responses.body import FunctionChoice, FunctionTool, ResponseBody, TextFormat
from api.responses.items import Item, Message
from api.views.chunks import TIER_USED
from common.errors import TailraceError

CHAT_NAMES = {
    "messages": "input",
    "max_completion_tokens": "max_output_tokens",
    "max_tokens": "max_output_tokens",
    "response_format": "text.format",
    "reasoning_effort": "reasoning.effort",
}
"""Parameters of the chat that are called differently here."""


def chat_body(body: ResponseBody, messages: list[Message]) -> dict[str, Any]:
    """What was not given is left out: the engine's defaults are the engine's."""
    if body.instructions is not None:
        messages = [{"role": "system", "content": body.instructions}, *messages]
    chat = {
        "model": body.model,
        "messages": messages,
        "stream": body.stream,
        "tailrace": body.tailrace.model_dump(exclude_unset=True),
        "max_completion_tokens": body.max_output_tokens,
        "temperature": body.temperature,
        "top_p": body.top_p,
        "service_tier": body.service_tier,
        "reasoning_effort": body.reasoning.effort,
        "response_format": _response_format(body.text.format),
        "tools": [_tool(tool) for tool in body.tools] or None,
        "tool_choice": _tool_choice(body),
        "parallel_tool_calls": body.parallel_tool_calls if body.tools else None,
        **body.engine_parameters,
    }
    return {name: value for name, value in chat.items() if value is not None}


def kept(body: ResponseBody, items: list[Item]) -> dict[str, Any]:
    """JobRecord.response: the request's own items, whether it streams, and the fields that each response echoes."""
    choice = body.tool_choice
    echo = {
        "background": body.background,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "metadata": body.metadata or {},
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": body.previous_response_id,
        "prompt_cache_key": body.prompt_cache_key,
        "reasoning": {"effort": body.reasoning.effort, "summary": None},
        "safety_identifier": body.safety_identifier,
        "service_tier": TIER_USED.get(body.service_tier or "auto", body.service_tier),
        "temperature": body.temperature,
        "text": {"format": _echoed_format(body.text.format), "verbosity": "medium"},
        "tool_choice": choice.model_dump() if isinstance(choice, FunctionChoice) else choice or "auto",
        "tools": [tool.model_dump() for tool in body.tools],
        "top_p": body.top_p,
        "truncation": "disabled",
        "user": body.user,
    }
    return {"echo": echo, "input": items, "stream": body.stream, "store": body.store}


def rename(error: TailraceError) -> None:
    """Let an error about the chat body name the parameter of the response's body."""
    error.param = CHAT_NAMES.get(error.param or "", error.param)


def _tool(tool: FunctionTool) -> dict[str, Any]:
    return {"type": "function", "function": tool.model_dump(exclude={"type"}, exclude_none=True)}


def _tool_choice(body: ResponseBody) -> Any:
    choice = body.tool_choice
    if isinstance(choice, FunctionChoice):
        return {"type": "function", "function": {"name": choice.name}}
    return choice if body.tools or choice == "required" else None


def _response_format(format: TextFormat) -> dict[str, Any] | None:
    if format.type == "text":
        return None
    if format.type == "json_object":
        return {"type": "json_object"}
    schema = {"name": format.name, "schema": format.json_schema, "strict": format.strict}
    described = {**schema, "description": format.description}
    return {"type": "json_schema", "json_schema": {k: v for k, v in described.items() if v is not None}}


def _echoed_format(format: TextFormat) -> dict[str, Any]:
    return format.model_dump(by_alias=True, exclude_none=True)
