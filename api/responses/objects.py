"""The `response` object, in whatever state."""

from typing import Any

from common.events import Event
from common.records import JobRecord

STATUS = {"running": "in_progress"}
"""A job's states in the words of the Responses API; the others are called the same."""


def unfinished(record: JobRecord, status: str) -> dict[str, Any]:
    """A response that waits or runs. What it has said so far is in its stream."""
    return _response(record, status, [])


def finished(record: JobRecord, end: Event, output: list[dict[str, Any]]) -> dict[str, Any]:
    """A response that has ended."""
    status = end["status"]
    response = _response(record, status, output)
    response["usage"] = usage_of(end.get("usage"))
    if status == "completed":
        response["completed_at"] = _ended_at(record, end)
    elif status == "incomplete":
        reason = "content_filter" if end.get("finish_reason") == "content_filter" else "max_output_tokens"
        response["incomplete_details"] = {"reason": reason}
    elif status == "failed":
        response["error"] = _error(end.get("error") or {})
    return response


def usage_of(chat: dict[str, Any] | None) -> dict[str, Any] | None:
    """A chat's usage in the shape of the Responses API."""
    if not chat:
        return None
    cached = (chat.get("prompt_tokens_details") or {}).get("cached_tokens")
    reasoning = (chat.get("completion_tokens_details") or {}).get("reasoning_tokens")
    return {
        "input_tokens": chat["prompt_tokens"],
        "input_tokens_details": {"cached_tokens": cached or 0, "cache_write_tokens": 0},
        "output_tokens": chat["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": reasoning or 0},
        "total_tokens": chat["total_tokens"],
    }


def _response(record: JobRecord, status: str, output: list[dict[str, Any]]) -> dict[str, Any]:
    assert record.response is not None
    return {
        "id": record.id,
        "object": "response",
        "created_at": int(record.created_at),
        "status": status,
        "model": record.model,
        "output": output,
        "completed_at": None,
        "error": None,
        "incomplete_details": None,
        "usage": None,
        **record.response["echo"],
    }


def _ended_at(record: JobRecord, end: Event) -> int | None:
    # Not the record's time of the end: the stream tells the end before the record has it, and both must agree.
    timings = end.get("timings")
    return int(record.created_at + timings["total_ms"] / 1000) if timings else None


def _error(error: dict[str, Any]) -> dict[str, Any]:
    """OpenAI's codes here are a closed set: whose fault it was. Which it was, in our words, is the message."""
    code = "invalid_prompt" if int(error.get("status") or 500) < 500 else "server_error"
    return {"code": code, "message": error.get("message", "The response failed.")}
