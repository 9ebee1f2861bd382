"""The input items of a response, and lists by the page."""

from typing import Any, Literal

from common.errors import NotFound
from common.records import JobRecord

_PREFIX = {"message": "msg", "function_call": "fc", "function_call_output": "fco", "reasoning": "rs"}


def input_items(record: JobRecord) -> list[dict[str, Any]]:
    """In the order of the request. An item that came without an id gets one by its place."""
    assert record.response is not None
    tail = record.id.removeprefix("resp_")
    return [
        {"id": f"{_PREFIX[item['type']]}_{tail}_in{place}", **item}
        for place, item in enumerate(record.response["input"])
    ]


def page(items: list[dict[str, Any]], limit: int, order: Literal["asc", "desc"], after: str | None) -> dict[str, Any]:
    """OpenAI's list object: at most `limit` items that follow the one with id `after`. Raises NotFound."""
    ordered = items if order == "asc" else items[::-1]
    ids = [item["id"] for item in ordered]
    if after is not None and after not in ids:
        raise NotFound(f"No item with id {after[:100]!r}.", param="after")
    first = ids.index(after) + 1 if after is not None else 0
    told = ordered[first : first + limit]
    return {
        "object": "list",
        "data": told,
        "first_id": told[0]["id"] if told else None,
        "last_id": told[-1]["id"] if told else None,
        "has_more": first + limit < len(ordered),
    }
