"""Input items: what a client may send, what is kept of it, and the chat messages that it becomes."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictStr, ValidationError

from api.responses.body import naming
from common.errors import BadRequest

Item = dict[str, Any]
Message = dict[str, Any]
Status = Literal["in_progress", "completed", "incomplete"]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class _InputText(_Strict):
    type: Literal["input_text"]
    text: StrictStr


class _InputImage(_Strict):
    type: Literal["input_image"]
    image_url: StrictStr
    detail: Literal["low", "high", "auto", "original"] = "auto"


class _OutputText(_Strict):
    type: Literal["output_text"]
    text: StrictStr
    annotations: list[Any] = Field(default_factory=list)
    logprobs: list[Any] = Field(default_factory=list)


class _Refusal(_Strict):
    type: Literal["refusal"]
    refusal: StrictStr


_Part = Annotated[_InputText | _InputImage | _OutputText | _Refusal, Field(discriminator="type")]


class _Message(_Strict):
    type: Literal["message"] = "message"
    role: Literal["user", "system", "developer", "assistant"]
    content: list[_Part]
    id: StrictStr | None = None
    status: Status = "completed"


class _FunctionCall(_Strict):
    type: Literal["function_call"]
    call_id: StrictStr
    name: StrictStr
    arguments: StrictStr
    id: StrictStr | None = None
    status: Status = "completed"


class _FunctionCallOutput(_Strict):
    type: Literal["function_call_output"]
    call_id: StrictStr
    output: StrictStr | list[Annotated[_InputText | _InputImage, Field(discriminator="type")]]
    id: StrictStr | None = None
    status: Status = "completed"


class _ReasoningText(_Strict):
    type: Literal["reasoning_text"]
    text: StrictStr


class _Reasoning(_Strict):
    type: Literal["reasoning"]
    content: list[_ReasoningText] = Field(default_factory=list)
    summary: list[Any] = Field(default_factory=list)
    id: StrictStr | None = None
    status: Status = "completed"


_ITEMS: dict[str, type[_Strict]] = {
    "message": _Message,
    "function_call": _FunctionCall,
    "function_call_output": _FunctionCallOutput,
    "reasoning": _Reasoning,
}


def parse_items(given: str | list[Item]) -> list[Item]:
    """Items as they are kept: complete, but for the ids of those that came without. Raises BadRequest by name."""
    if isinstance(given, str):
        given = [{"role": "user", "content": given}]
    return [_parse_item(item, f"input.{i}") for i, item in enumerate(given)]


def _parse_item(item: Item, where: str) -> Item:
    # Output items that come back as input bring along fields that were null.
    item = {name: value for name, value in item.items() if value is not None}
    kind = item.get("type", "message")
    if not isinstance(kind, str) or kind not in _ITEMS:
        raise BadRequest(f"Items of type {str(kind)[:100]!r} are not supported.", param=f"{where}.type")
    if kind == "message" and isinstance(item.get("content"), str):
        part = "output_text" if item.get("role") == "assistant" else "input_text"
        item["content"] = [{"type": part, "text": item["content"]}]
    try:
        return _ITEMS[kind].model_validate(item).model_dump(exclude_none=True)
    except ValidationError as error:
        raise naming(error, where) from error


def messages_of(items: list[Item]) -> list[Message]:
    """The chat messages that say the same. Reasoning, text and calls in a row are one turn of the assistant."""
    messages: list[Message] = []
    for item in items:
        kind = item["type"]
        if kind == "function_call_output":
            content = item["output"] if isinstance(item["output"], str) else _content(item["output"])
            messages.append({"role": "tool", "tool_call_id": item["call_id"], "content": content})
        elif kind == "message" and item["role"] != "assistant":
            # Chat templates know one role for instructions.
            role = "user" if item["role"] == "user" else "system"
            messages.append({"role": role, "content": _content(item["content"])})
        else:
            _add_to_turn(messages, item)
    return messages


def _add_to_turn(messages: list[Message], item: Item) -> None:
    kind = item["type"]
    turn = messages[-1] if messages and messages[-1]["role"] == "assistant" else None
    # Within a turn, reasoning comes before text, and text before calls.
    if turn is None or (kind == "reasoning" and len(turn) > 1) or (kind == "message" and turn.keys() & _SAID):
        turn = {"role": "assistant"}
        messages.append(turn)
    if kind == "reasoning":
        turn["reasoning"] = "".join(part["text"] for part in item["content"])
    elif kind == "message":
        turn["content"] = _content(item["content"])
    else:
        function = {"name": item["name"], "arguments": item["arguments"]}
        turn.setdefault("tool_calls", []).append({"id": item["call_id"], "type": "function", "function": function})


_SAID = {"content", "tool_calls"}


def _content(parts: list[Item]) -> str | list[Item]:
    """A chat message's content: plain text where that is all, because not every engine takes parts everywhere."""
    chat = [_chat_part(part) for part in parts]
    return chat[0]["text"] if len(chat) == 1 and chat[0]["type"] == "text" else chat


def _chat_part(part: Item) -> Item:
    if part["type"] == "input_image":
        return {"type": "image_url", "image_url": {"url": part["image_url"], "detail": part["detail"]}}
    if part["type"] == "refusal":
        return {"type": "text", "text": part["refusal"]}
    return {"type": "text", "text": part["text"]}
