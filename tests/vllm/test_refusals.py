"""What vLLM refuses is a 4xx that names the parameter, whether vLLM named it or only spoke of it."""

from typing import Any

import pytest

from tests.vllm.answers import Kind, Run, chat, completion
from workers.engines.base import EngineRefused
from workers.engines.vllm import VllmEngine

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]

TOOL: dict[str, Any] = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
IMAGE = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}]}
ODD_PART = {"role": "user", "content": [{"type": "odd", "x": 1}]}
BAD_SCHEMA = {"type": "json_schema", "json_schema": {"name": "stop", "schema": {"type": "stop"}}}

CHATS: list[tuple[dict[str, Any], str]] = [
    ({"temperature": "warm"}, "temperature"),
    ({"temperature": 3}, "temperature"),
    ({"top_p": 2}, "top_p"),
    ({"top_k": -5}, "top_k"),
    ({"min_p": 2}, "min_p"),
    ({"presence_penalty": 3}, "presence_penalty"),
    ({"repetition_penalty": 0}, "repetition_penalty"),
    ({"n": 100_000}, "n"),
    ({"logprobs": True, "top_logprobs": 50}, "logprobs"),
    ({"top_logprobs": 5}, "top_logprobs"),
    ({"stop": [""]}, "stop"),
    ({"min_tokens": 10, "max_tokens": 5}, "min_tokens"),
    ({"max_tokens": -1}, "max_tokens"),
    ({"max_tokens": 100_000}, "max_tokens"),
    ({"max_completion_tokens": 100_000}, "max_completion_tokens"),
    ({"bad_words": [""]}, "bad_words"),
    ({"logit_bias": {"999999999": 1}}, "logit_bias"),
    ({"allowed_token_ids": []}, "allowed_token_ids"),
    ({"tool_choice": "auto"}, "tool_choice"),
    ({"tool_choice": "odd", "tools": [TOOL]}, "tool_choice"),
    ({"tool_choice": {"type": "function", "function": {"name": "g"}}, "tools": [TOOL]}, "tool_choice"),
    ({"tools": []}, "tools"),
    ({"tools": [{"type": "custom", "custom": {"name": "c"}}]}, "tools.0.type"),
    ({"response_format": {"type": "json_schema"}}, "response_format"),
    ({"response_format": {"type": "yaml"}}, "response_format.type"),
    ({"response_format": BAD_SCHEMA, "stop": ["x"]}, "response_format"),
    ({"structured_outputs": {"regex": "("}}, "structured_outputs"),
    ({"structured_outputs": {"grammar": "odd ::"}}, "structured_outputs"),
    ({"structured_outputs": {"choice": ["a"], "regex": "a"}}, "structured_outputs"),
    ({"structured_outputs": {}}, "structured_outputs"),
    ({"thinking_token_budget": 5}, "thinking_token_budget"),
    ({"chat_template": "x"}, "chat_template"),
    ({"messages": "hello"}, "messages"),
    ({"messages": [IMAGE]}, "messages"),
    ({"messages": [ODD_PART]}, "messages"),
    ({"reasoning_effort": "huge"}, "reasoning_effort"),
]
COMPLETIONS: list[tuple[dict[str, Any], str]] = [
    ({"max_tokens": -1}, "max_tokens"),
    ({"logprobs": 50}, "logprobs"),
    ({"suffix": "x"}, "suffix"),
    ({"prompt": [99_999_999]}, "prompt"),
    ({"prompt": [[]]}, "prompt"),
    ({"use_beam_search": True}, "use_beam_search"),
]
CASES = [("chat", *case) for case in CHATS] + [("completion", *case) for case in COMPLETIONS]


async def refused(run: Run, engine: VllmEngine, kind: Kind, change: dict[str, Any]) -> EngineRefused:
    body = {**(chat("Hello!") if kind == "chat" else completion("Hello")), **change}
    with pytest.raises(EngineRefused) as refusal:
        await run(kind, body)
    assert refusal.value.message
    assert engine.running() == 0
    return refusal.value


@pytest.mark.parametrize(("kind", "change", "param"), CASES)
async def test_a_refusal_names_the_parameter(
    run: Run, engine: VllmEngine, kind: Kind, change: dict[str, Any], param: str
) -> None:
    refusal = await refused(run, engine, kind, change)
    assert (refusal.param, refusal.status, refusal.code) == (param, 400, None)


@pytest.mark.parametrize(
    ("kind", "change", "param"),
    [
        ("chat", {"messages": [{"role": "user", "content": "word " * 4000}]}, "messages"),
        ("completion", {"prompt": "word " * 4000}, "prompt"),
    ],
)
async def test_a_prompt_that_is_too_long(
    run: Run, engine: VllmEngine, kind: Kind, change: dict[str, Any], param: str
) -> None:
    refusal = await refused(run, engine, kind, change)
    assert (refusal.param, refusal.status, refusal.code) == (param, 400, "context_length_exceeded")


def test_tools_without_a_parser() -> None:
    """The words of an engine that was started without one."""
    from workers.engines.vllm.errors import to_blame

    words = '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'
    assert to_blame(None, words, chat("Hello!", tools=[TOOL])) == "tools"
    assert to_blame(None, words, chat("Hello!", tools=[TOOL], tool_choice="auto")) == "tool_choice"


async def test_another_model(run: Run, engine: VllmEngine) -> None:
    refusal = await refused(run, engine, "chat", {"model": "another"})
    assert (refusal.status, refusal.code) == (404, "model_not_found")


@pytest.mark.parametrize(
    "change",
    [
        {"guided_json": {"type": "object"}},
        {"best_of": 3},
        {"verbosity": "low"},
        {"prompt_logprobs": 1},
        {"prompt_logprobs": 0},  # the prompt's own tokens, without others in their place
        {"return_token_ids": True},
    ],
)
async def test_what_would_be_ignored_is_refused(run: Run, engine: VllmEngine, change: dict[str, Any]) -> None:
    refusal = await refused(run, engine, "chat", change)
    assert (refusal.param, refusal.code) == (next(iter(change)), "unsupported_parameter")


async def test_a_best_of_that_changes_nothing_is_none_of_these(run: Run) -> None:
    assert (await run("completion", completion("Hello", max_tokens=1, best_of=1))).text
