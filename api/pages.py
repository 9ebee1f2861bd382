"""Lists by the page, as OpenAI's clients turn them."""

from typing import Any, Literal

from common.errors import NotFound


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
