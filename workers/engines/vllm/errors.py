"""vLLM's errors as the three that a worker knows, with the name of the parameter that is to blame."""

import re
from typing import Any

from pydantic import ValidationError
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.entrypoints.serve.exception_handling.error_response import create_error_response
from vllm.entrypoints.serve.exception_handling.handlers.validation import clean_loc_for_param
from vllm.v1.engine.exceptions import EngineDeadError

from workers.engines.base import EngineDied, EngineFailed, EngineRefused

_MAX_REPORTED = 5
_FIELDS = ChatCompletionRequest.model_fields.keys() | CompletionRequest.model_fields.keys()
_GUIDES = ("structured_outputs", "response_format", "tools")
# Words of messages that name no parameter.
_ABOUT_A_GUIDE = re.compile("grammar error|invalid grammar|choice '", re.IGNORECASE)
_ABOUT_THE_PROMPT = re.compile("prompt|input tokens|token id|multimodal", re.IGNORECASE)


def translate(error: Exception, body: dict[str, Any], *, dead: bool) -> Exception:
    """`error`, which `body` met with, as EngineRefused, EngineFailed or EngineDied; `dead`: the engine is gone."""
    fault = _translate(error, dead=dead)
    if isinstance(fault, EngineRefused):
        fault.param = to_blame(fault.param, fault.message, body)
    return fault


def to_blame(param: str | None, message: str, body: dict[str, Any]) -> str | None:
    """The parameter of `body` that vLLM means: it names some by inner names, and many only in the text."""
    if param and param.split(".")[0] in _FIELDS:
        return param
    if _ABOUT_A_GUIDE.match(message):
        return next((guide for guide in _GUIDES if body.get(guide)), None)
    words = {name: re.escape(name.removeprefix("use_")).replace("_", "[_ ]") for name in body if name in _FIELDS}
    named = {name: re.search(rf"\b{word}\b", message, re.IGNORECASE) for name, word in words.items()}
    found = [(place.start(), name) for name, place in named.items() if place and name not in ("model", "user")]
    if found:
        return min(found)[1]
    if "tool choice" in message and body.get("tools"):
        return "tools"  # given without a choice, which is then "auto"
    about_prompt = param is not None or _ABOUT_THE_PROMPT.search(message)
    return ("messages" if "messages" in body else "prompt") if about_prompt else None


def _translate(error: Exception, *, dead: bool) -> Exception:
    if isinstance(error, EngineRefused | EngineDied):
        return error
    if dead or isinstance(error, EngineDeadError):
        return EngineDied(str(error) or type(error).__name__)
    if isinstance(error, EngineFailed):
        return error
    if isinstance(error, ValidationError):
        return _invalid(error)
    response = create_error_response(error)
    if response.error.code == 500:
        cause = error.__cause__ or error  # EngineGenerateError itself says nothing
        return EngineFailed(f"{type(cause).__name__}: {cause}")
    return refused(response)


def refused(response: Any) -> EngineRefused:
    """vLLM's ErrorResponse as an exception."""
    error = response.error
    return EngineRefused(error.message, status=error.code, param=error.param, code=_code(error))


def _code(error: Any) -> str | None:
    if "maximum context length" in error.message or "maximum model length" in error.message:
        return "context_length_exceeded"
    return "model_not_found" if error.code == 404 else None


def _invalid(error: ValidationError) -> EngineRefused:
    problems = error.errors(include_url=False, include_input=False)
    params = [clean_loc_for_param(problem["loc"]) for problem in problems]
    lines = [f"{param}: {problem['msg']}" for param, problem in zip(params, problems, strict=True)]
    # A union type reports one problem per member; nobody reads more than a few.
    return EngineRefused("; ".join(lines[:_MAX_REPORTED]), param=params[0] or None)
