"""Which requests may be continued; needs no engine."""

from typing import Any

import pytest

from tests.vllm.test_engine import TOOLS
from workers.engines.vllm.resumable import resumable

STRICT = [{"type": "function", "function": {"name": "f", "strict": True}}]


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"n": 1, "temperature": 0.7, "seed": 3, "logprobs": True, "top_logprobs": 5},
        {"prompt": "text"},
        {"prompt": [1, 2, 3]},
        {"prompt": ["one"]},
        {"response_format": {"type": "text"}},
        {"tools": TOOLS},
        {"tools": TOOLS, "tool_choice": "auto"},
        {"tools": STRICT, "tool_choice": "none"},
    ],
)
def test_resumable(body: dict[str, Any]) -> None:
    assert resumable(body)


@pytest.mark.parametrize(
    "body",
    [
        {"n": 2},
        {"best_of": 3},
        {"use_beam_search": True},
        {"echo": True},
        {"prompt_logprobs": 1},
        {"prompt": ["one", "two"]},
        {"prompt": [[1], [2]]},
        {"response_format": {"type": "json_object"}},
        {"response_format": {"type": "json_schema", "json_schema": {}}},
        {"structured_outputs": {"regex": "a+"}},
        {"guided_json": {}, "guided_choice": ["a"]},
        {"tools": TOOLS, "tool_choice": "required"},
        {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "get_weather"}}},
        {"tools": TOOLS, "parallel_tool_calls": False},
        {"tools": STRICT},
    ],
)
def test_not_resumable(body: dict[str, Any]) -> None:
    assert not resumable(body)
