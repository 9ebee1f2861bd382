"""Parameters that Tailrace itself acts on, and that what it does not know reaches the engine untouched."""

from typing import Any

import pytest
from openai import BadRequestError, NotFoundError, OpenAI

from tests.openai.test_chat import ask
from tests.support.client import Client, chat
from tests.support.processes import Stack
from tests.support.upstream import MODEL as SCRIPTED
from tests.support.upstream import ScriptedUpstream


def test_the_engine_gets_every_parameter_but_those_that_are_ours(scripted: OpenAI, upstream: ScriptedUpstream) -> None:
    generation = {
        "seed": 3,
        "stop": ["x"],
        "frequency_penalty": 0.5,
        "presence_penalty": -0.5,
        "logit_bias": {"5": 10},
        "parallel_tool_calls": False,
        "tool_choice": "auto",
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
        "response_format": {"type": "json_object"},
        "reasoning_effort": "low",
        "user": "u",
        "prompt_cache_key": "k",
    }
    vllms = {
        "top_k": 5,
        "min_p": 0.1,
        "repetition_penalty": 1.1,
        "structured_outputs": {"regex": "a+"},
        "unheard_of": {},
    }
    ours: dict[str, Any] = {"store": True, "metadata": {"a": "b"}, "service_tier": "flex"}
    asked = ask("hello", **generation, **ours)
    scripted.chat.completions.create(**asked, extra_body={**vllms, "tailrace": {"priority": 1}})
    transport = {"model": SCRIPTED, "stream": True, "stream_options": {"include_usage": True}}
    assert upstream.asked[-1] == {"messages": asked["messages"], **generation, **vllms, **transport}


@pytest.mark.parametrize(
    ("tier", "used", "priority"),
    [("auto", "default", 0), ("default", "default", 0), ("flex", "flex", -30), ("priority", "priority", 30)],
)
async def test_the_service_tier_is_a_place_in_the_queue(
    stack: Stack, client: Client, sdk: OpenAI, tier: Any, used: str, priority: int
) -> None:
    with sdk.chat.completions.create(**chat("tier", 2), service_tier=tier, stream=True) as stream:
        chunks = list(stream)
    assert {chunk.service_tier for chunk in chunks} == {used}
    whole = sdk.chat.completions.create(**chat("tier", 2), service_tier=tier)
    assert whole.service_tier == used
    assert (await client.job(whole.id))["priority"] == priority


async def test_a_priority_of_ones_own_wins_over_the_tier(client: Client) -> None:
    body = chat("tier", 2, service_tier="flex")
    job_id = await client.submit({**body, "tailrace": {"priority": 7}})
    assert (await client.job(job_id))["priority"] == 7
    job_id = await client.submit(body, headers={"X-Tailrace-Priority": "0"})
    assert (await client.job(job_id))["priority"] == 0


def test_without_a_tier_none_is_named(sdk: OpenAI) -> None:
    assert "service_tier" not in sdk.chat.completions.create(**chat("tier", 2)).to_dict()


async def test_user_and_metadata_are_kept_on_the_job(client: Client, sdk: OpenAI) -> None:
    whole = sdk.chat.completions.create(**chat("kept", 2), user="u-1", metadata={"team": "search"})
    assert whole.metadata == {"team": "search"}
    record = await client.job(whole.id)
    assert (record["user"], record["metadata"]) == ("u-1", {"team": "search"})


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"metadata": {f"k{i}": "v" for i in range(17)}}, "metadata"),
    ({"metadata": {"k" * 65: "v"}}, "metadata." + "k" * 65),
    ({"metadata": {"k": "v" * 513}}, "metadata.k"),
    ({"metadata": {"k": 5}}, "metadata.k"),
    ({"metadata": "k"}, "metadata"),
    ({"service_tier": "golden"}, "service_tier"),
    ({"store": "yes"}, "store"),
    ({"user": 5}, "user"),
    ({"modalities": ["text", "audio"]}, "modalities.1"),
    ({"audio": {"voice": "alloy", "format": "mp3"}}, "audio"),
    ({"functions": [{"name": "f"}]}, "functions"),
    ({"function_call": "auto"}, "function_call"),
    ({"web_search_options": {}}, "web_search_options"),
    ({"moderation": {"model": "m"}}, "moderation"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"stream": True, "stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
    ({"stream": True, "stream_options": {"include_obfuscation": True}}, "stream_options.include_obfuscation"),
    ({"stream": True, "stream_options": {"continuous_usage_stats": True}}, "stream_options.continuous_usage_stats"),
    ({"temperature": -1}, "temperature"),
    ({"top_p": 2}, "top_p"),
    ({"n": 129}, "n"),
]


@pytest.mark.parametrize(("change", "param"), REFUSED, ids=[param[:30] for _, param in REFUSED])
def test_what_cannot_be_honoured_is_refused_by_name(sdk: OpenAI, change: dict[str, Any], param: str) -> None:
    with pytest.raises(BadRequestError) as caught:
        sdk.chat.completions.create(**chat("no", 2), extra_body=change)
    assert (caught.value.param, caught.value.type) == (param, "invalid_request_error")
    assert caught.value.code in ("invalid_request", "unsupported_parameter")


def test_models(sdk: OpenAI) -> None:
    listed = list(sdk.models.list())
    assert [model.id for model in listed] == ["simulated"]
    assert sdk.models.retrieve("simulated") == listed[0]
    for unknown in ("gpt-6", "org/model"):
        with pytest.raises(NotFoundError) as caught:
            sdk.models.retrieve(unknown)
        assert (caught.value.code, caught.value.param) == ("model_not_found", "model")
