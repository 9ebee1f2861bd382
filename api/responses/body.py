"""The body of `POST /v1/responses`. What cannot be honoured is refused by name, never ignored."""

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt, StrictStr, ValidationError, model_validator

from api.bodies import Extension, Metadata, ServiceTier
from common.errors import BadRequest

UNSUPPORTED = {
    "access_programs": "there are none",
    "background_options": "there is one way to run in the background",
    "context_management": "conversations are not compacted",
    "conversation": "use 'previous_response_id'",
    "image": "images are passed to the engine as they are",
    "max_tool_calls": "it is about built-in tools, and there are none",
    "moderation": "nothing here moderates",
    "prompt": "there are no stored prompts",
    "prompt_cache_options": "the engine caches prefixes by itself",
    "prompt_cache_retention": "the engine caches prefixes by itself",
    "top_logprobs": "log probabilities are not part of responses here; chat completions have them",
}
"""OpenAI's parameters that nothing here could honour, and why."""

ENGINE_PARAMETERS = (
    "seed",
    "stop",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "top_k",
    "min_p",
    "chat_template_kwargs",
)
"""Not OpenAI's here, but engines': passed on as in a chat, and judged there."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class FunctionTool(_Strict):
    type: Literal["function"]
    name: Annotated[StrictStr, Field(min_length=1)]
    description: StrictStr | None = None
    parameters: dict[str, Any] | None = None
    strict: StrictBool | None = None


class FunctionChoice(_Strict):
    type: Literal["function"]
    name: StrictStr


class TextFormat(_Strict):
    type: Literal["text", "json_object", "json_schema"] = "text"
    name: StrictStr | None = None
    description: StrictStr | None = None
    json_schema: Annotated[dict[str, Any] | None, Field(alias="schema")] = None
    strict: StrictBool | None = None

    @model_validator(mode="after")
    def _schema_is_named(self) -> Self:
        if self.type == "json_schema" and not (self.name and self.json_schema is not None):
            raise ValueError("a json_schema format needs 'name' and 'schema'")
        return self


class TextConfig(_Strict):
    format: TextFormat = TextFormat()
    verbosity: Literal["medium"] | None = None


class Reasoning(_Strict):
    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    summary: None = None
    """Reasoning comes as it is; nothing here sums it up."""


class StreamOptions(_Strict):
    include_obfuscation: Literal[False] | None = None


class ResponseBody(_Strict):
    """Fields that are None were not given. Engine parameters are checked by the chat body that this becomes."""

    model_config = ConfigDict(extra="allow")

    model: Annotated[StrictStr, Field(min_length=1, max_length=256)]
    input: StrictStr | Annotated[list[dict[str, Any]], Field(min_length=1)]
    instructions: StrictStr | None = None
    previous_response_id: StrictStr | None = None
    background: StrictBool = False
    stream: StrictBool = False
    stream_options: StreamOptions | None = None
    store: StrictBool = True
    include: Annotated[list[str], Field(max_length=0)] | None = None
    metadata: Metadata | None = None
    max_output_tokens: Annotated[StrictInt, Field(ge=1)] | None = None
    temperature: Annotated[float, Field(strict=True, ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(strict=True, gt=0, le=1)] | None = None
    tools: list[FunctionTool] = Field(default_factory=list)
    tool_choice: Literal["none", "auto", "required"] | FunctionChoice | None = None
    parallel_tool_calls: StrictBool | None = None
    text: TextConfig = TextConfig()
    reasoning: Reasoning = Reasoning()
    truncation: Literal["disabled"] | None = None
    service_tier: ServiceTier | None = None
    user: StrictStr | None = None
    safety_identifier: StrictStr | None = None
    prompt_cache_key: StrictStr | None = None
    tailrace: Extension = Extension()

    @property
    def engine_parameters(self) -> dict[str, Any]:
        return self.model_extra or {}


def parse_response_body(raw: dict[str, Any]) -> ResponseBody:
    """Raises BadRequest naming the parameter. A null is a parameter that is not given."""
    raw = {name: value for name, value in raw.items() if value is not None}
    for name in raw:
        if name in UNSUPPORTED:
            raise _unsupported(name, UNSUPPORTED[name])
        if name not in ResponseBody.model_fields and name not in ENGINE_PARAMETERS:
            raise BadRequest(f"Unknown parameter: {name[:200]!r}.", code="unknown_parameter", param=name[:200])
    try:
        body = ResponseBody.model_validate(raw)
    except ValidationError as error:
        raise naming(error) from error
    _check_together(body)
    return body


def _check_together(body: ResponseBody) -> None:
    if body.background and not body.store:
        raise _unsupported("background", "a background response must be stored, or nobody could fetch it")
    if body.background and body.tailrace.on_disconnect == "cancel":
        raise BadRequest("A background response has no reader to wait for.", param="tailrace.on_disconnect")
    if body.stream_options and not body.stream:
        raise BadRequest("'stream_options' has a meaning only with 'stream': true.", param="stream_options")


def _unsupported(name: str, why: str) -> BadRequest:
    return BadRequest(f"{name!r} is not supported: {why}.", code="unsupported_parameter", param=name)


def naming(error: ValidationError, before: str = "") -> BadRequest:
    """One of the problems as an error that names the parameter, below `before`."""
    # Each branch of a union complains; the one that came furthest is the one that was meant.
    first = max(error.errors(), key=lambda problem: len(problem["loc"]))
    # A union puts the branch that it tried into the path: types (`str`, `list[...]`), models and tags.
    path = [str(part) for part in first["loc"] if str(part) not in _BRANCHES and str(part).isidentifier()]
    path = [str(part) for part in first["loc"] if isinstance(part, int) or str(part) in path]
    param = ".".join([before, *path] if before else path)[:200]
    if first["type"] == "missing":
        return BadRequest(f"Missing required parameter: {param!r}.", code="missing_required_parameter", param=param)
    return BadRequest(f"{param}: {first['msg']}", param=param)


_BRANCHES = frozenset(
    {"str", "int", "float", "dict", "FunctionChoice", "input_text", "input_image", "output_text", "refusal"}
)
