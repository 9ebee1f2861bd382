"""An OpenAI-compatible server for the `openai` engine that says what it is told, for what the simulated engine cannot.

It calls every tool that a request offers, one after another, with the last message as the arguments. Without tools, and
after a tool's answer, it says the last message up to the first stop sequence. Asked for reasoning effort, it first
thinks of that. All of it comes a few characters at a time.
"""

import json
import sys
from collections.abc import Iterator
from typing import Any

import uvicorn
from fastapi import FastAPI
from starlette.responses import StreamingResponse

MODEL = "echo"
PIECE = 3
"""Characters of one chunk."""

app = FastAPI()


@app.get("/v1/models")
async def models() -> dict[str, Any]:
    return {"object": "list", "data": [{"id": MODEL, "object": "model"}]}


@app.post("/v1/chat/completions")
async def chat(body: dict[str, Any]) -> StreamingResponse:
    return StreamingResponse(frames(body), media_type="text/event-stream")


def frames(body: dict[str, Any]) -> Iterator[str]:
    last = body["messages"][-1]
    calls = body.get("tools") and last["role"] != "tool"
    says = tool_calls(body["tools"], last["content"]) if calls else said(last["content"], body.get("stop") or [])
    thinks = ({"reasoning": piece} for piece in pieces(body.get("reasoning_effort") or ""))
    deltas = [{"role": "assistant", "content": ""}, *thinks, *says]
    for delta in deltas:
        yield frame([{"index": 0, "delta": delta}])
    yield frame([{"index": 0, "delta": {}, "finish_reason": "tool_calls" if calls else "stop"}])
    prompt, completion = len(body["messages"]), len(deltas)
    yield frame(
        [],
        usage={"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion},
    )
    yield "data: [DONE]\n\n"


def said(text: str, stop: str | list[str]) -> Iterator[dict[str, Any]]:
    for end in [stop] if isinstance(stop, str) else stop:
        text = text.split(end)[0]
    for piece in pieces(text):
        yield {"content": piece}


def tool_calls(tools: list[dict[str, Any]], arguments: str) -> Iterator[dict[str, Any]]:
    for i, tool in enumerate(tools):
        for piece in one_call(i, tool, arguments):
            yield {"tool_calls": [piece]}


def one_call(index: int, tool: dict[str, Any], arguments: str) -> Iterator[dict[str, Any]]:
    """Id and name come with the first piece, and only there."""
    function = {"name": tool["function"]["name"], "arguments": ""}
    yield {"index": index, "id": f"call_{index}", "type": "function", "function": function}
    for piece in pieces(arguments):
        yield {"index": index, "function": {"arguments": piece}}


def pieces(text: str) -> Iterator[str]:
    return (text[i : i + PIECE] for i in range(0, len(text), PIECE))


def frame(choices: list[dict[str, Any]], **more: Any) -> str:
    chunk = {"id": "up", "object": "chat.completion.chunk", "created": 1, "model": MODEL, "choices": choices, **more}
    return f"data: {json.dumps(chunk)}\n\n"


if __name__ == "__main__":
    uvicorn.run(app, port=int(sys.argv[1]), log_level="warning")
