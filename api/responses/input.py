"""The input items of a response."""

from typing import Any

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
