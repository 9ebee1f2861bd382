"""vLLM's errors as the three that a worker knows."""

from typing import Any

from pydantic import ValidationError
from vllm.entrypoints.serve.exception_handling.error_response import create_error_response
from vllm.entrypoints.serve.exception_handling.handlers.validation import clean_loc_for_param
from vllm.v1.engine.exceptions import EngineDeadError

from workers.engines.base import EngineDied, EngineFailed, EngineRefused

_MAX_REPORTED = 5


def translate(error: Exception, *, dead: bool) -> Exception:
    """`error` as EngineRefused, EngineFailed or EngineDied; `dead`: the engine is known to be gone."""
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
