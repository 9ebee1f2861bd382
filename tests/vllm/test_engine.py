"""What the engine makes of requests: vLLM's own answers, as canonical events."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import jsonschema
import pytest

from common.settings import Settings
from tests.support.wait import until
from tests.vllm.answers import Run, chat, completion
from workers.engines.base import EngineDied, EngineFailed, GenerationRequest
from workers.engines.vllm import VllmEngine

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]

STORY = chat("Write a long story about a river.", max_tokens=500, ignore_eos=True)


async def test_a_chat_is_answered_sensibly(run: Run) -> None:
    answer = await run("chat", chat("What is the capital of France?", max_tokens=20))
    assert "Paris" in answer.text
    assert answer.deltas[0]["role"] == "assistant"
    assert [delta["finish_reason"] for delta in answer.deltas if "finish_reason" in delta] == ["stop"]
    assert "finish_reason" in answer.deltas[-1]


async def test_a_completion_continues_the_prompt(run: Run) -> None:
    answer = await run("completion", completion("The capital of France is", max_tokens=5))
    assert "Paris" in answer.text
    assert answer.whole()["finish_reason"] == "length"
    assert "role" not in answer.whole()


async def test_token_ids_and_usage_agree(run: Run) -> None:
    answer = await run("chat", chat("Count to ten.", max_tokens=24))
    assert len(answer.whole()["token_ids"]) == answer.usage["completion_tokens"]
    assert answer.usage["total_tokens"] == answer.usage["prompt_tokens"] + answer.usage["completion_tokens"]


async def test_the_prompt_is_counted_before_the_first_token(run: Run) -> None:
    answer = await run("chat", chat("Hello!", max_tokens=1))
    assert answer.events[0]["type"] == "usage"
    assert answer.events[0]["usage"]["prompt_tokens"] == answer.usage["prompt_tokens"]


async def test_a_stop_string_ends_the_answer_and_is_not_in_it(run: Run) -> None:
    answer = await run("completion", completion("One, two, three, four, five, six,", max_tokens=30, stop=["nine"]))
    assert "eight" in answer.text
    assert "nine" not in answer.text
    assert answer.whole()["stop_reason"] == "nine"
    assert len(answer.whole()["token_ids"]) == answer.usage["completion_tokens"]


async def test_chat_logprobs_cover_every_token(run: Run) -> None:
    answer = await run("chat", chat("Hello!", max_tokens=6, logprobs=True, top_logprobs=2))
    entries = answer.whole()["logprobs"]["content"]
    assert len(entries) == answer.usage["completion_tokens"]
    assert all(len(entry["top_logprobs"]) == 2 and entry["logprob"] <= 0 for entry in entries)


async def test_completion_logprobs_cover_every_token(run: Run) -> None:
    answer = await run("completion", completion("The capital of France is", max_tokens=6, logprobs=1))
    logprobs = answer.whole()["logprobs"]
    assert "".join(logprobs["tokens"]) == answer.text
    assert len(logprobs["token_logprobs"]) == len(logprobs["text_offset"]) == answer.usage["completion_tokens"]


async def test_two_choices(run: Run) -> None:
    answer = await run("chat", chat("Name a colour.", max_tokens=8, n=2, temperature=1, seed=3))
    first, second = answer.whole(0), answer.whole(1)
    assert first["role"] == second["role"] == "assistant"
    assert first["finish_reason"]
    assert second["finish_reason"]
    assert len(first["token_ids"]) + len(second["token_ids"]) == answer.usage["completion_tokens"]


async def test_two_prompts_are_two_choices(run: Run) -> None:
    answer = await run("completion", completion(["One, two,", "The capital of France is"], max_tokens=4))
    assert "three" in answer.whole(0)["content"]
    assert "Paris" in answer.whole(1)["content"]
    assert len(answer.whole(0)["token_ids"]) == len(answer.whole(1)["token_ids"]) == 4


async def test_a_seed_repeats_an_answer(run: Run) -> None:
    body = chat("Tell me something.", max_tokens=16, temperature=1.5)
    first, again, other = [await run("chat", {**body, "seed": seed}) for seed in (7, 7, 8)]
    assert first.text == again.text != other.text


async def test_a_json_schema_is_obeyed(run: Run) -> None:
    schema = {
        "type": "object",
        "properties": {"city": {"enum": ["Paris", "Rome"]}, "capital": {"type": "boolean"}},
        "required": ["city", "capital"],
        "additionalProperties": False,
    }
    response_format = {"type": "json_schema", "json_schema": {"name": "city", "schema": schema}}
    answer = await run("chat", chat("Describe Paris.", max_tokens=60, response_format=response_format))
    jsonschema.validate(json.loads(answer.text), schema)


TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "parameters": {
                "type": "object",
                "properties": {"city": {"enum": ["Paris", "Rome"]}},
                "required": ["city"],
                "additionalProperties": False,
            },
        },
    }
]


async def test_a_forced_tool_is_called(run: Run) -> None:
    strict = [{"type": "function", "function": {**TOOLS[0]["function"], "strict": True}}]
    forced = {"type": "function", "function": {"name": "get_weather"}}
    answer = await run("chat", chat("Weather in Rome?", max_tokens=60, tools=strict, tool_choice=forced))
    pieces = answer.whole()["tool_calls"]
    assert pieces[0]["function"]["name"] == "get_weather"
    arguments = "".join(piece["function"].get("arguments") or "" for piece in pieces)
    assert json.loads(arguments)["city"] in ("Paris", "Rome")


async def test_tools_may_be_ignored(run: Run) -> None:
    answer = await run("chat", chat("Say hello.", max_tokens=8, tools=TOOLS))
    assert answer.whole()["finish_reason"] in ("stop", "length", "tool_calls")


async def test_the_request_body_is_left_as_it_was(run: Run) -> None:
    body = chat("Hello!", max_tokens=1, tools=TOOLS)
    body["messages"].append({"role": "assistant", "content": "Hi.", "reasoning_content": "polite"})
    before = json.dumps(body)
    await run("chat", body)
    assert json.dumps(body) == before


async def test_closing_the_iterator_aborts_the_request(engine: VllmEngine) -> None:
    events = engine.generate(GenerationRequest("job", "chat", STORY))
    async for event in events:
        if event.get("content"):
            break
    assert engine.running() == 1
    await events.aclose()
    assert engine.running() == 0


async def test_cancelling_one_of_three_leaves_the_others_alone(run: Run, engine: VllmEngine) -> None:
    body = chat("Count to ten.", max_tokens=24)
    alone = await run("chat", body)
    victim = asyncio.create_task(run("chat", STORY))
    others = [asyncio.create_task(run("chat", body)) for _ in range(2)]
    await until(lambda: engine.running() == 3, "three requests run")
    victim.cancel()
    with pytest.raises(asyncio.CancelledError):
        await victim
    assert [answer.text for answer in await asyncio.gather(*others)] == [alone.text] * 2
    assert engine.running() == 0


async def test_a_dead_engine_is_never_a_final_error(
    run: Run, engine: VllmEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError

    generate = engine._llm.generate

    def breaks_with(error: Exception) -> Any:
        async def broken(*args: Any, **kwargs: Any) -> Any:
            async for output in generate(*args, **kwargs):
                yield output
                raise error

        return broken

    monkeypatch.setattr(engine._llm, "generate", breaks_with(EngineDeadError()))
    with pytest.raises(EngineDied):
        await run("chat", STORY)
    monkeypatch.setattr(engine._llm, "generate", breaks_with(EngineGenerateError()))
    with pytest.raises(EngineFailed):
        await run("chat", STORY)
    assert engine.running() == 0


async def test_an_abort_that_nobody_asked_for_is_a_dying_engine(run: Run, engine: VllmEngine) -> None:
    story = asyncio.create_task(run("chat", STORY))
    await until(lambda: engine.running() == 1, "the request runs")
    await engine._llm.abort(list(engine._llm.output_processor.request_states), internal=True)
    with pytest.raises(EngineDied):
        await story


def test_the_limits_are_vllms(engine: VllmEngine) -> None:
    assert engine.model == "SmolLM2-135M-Instruct"
    assert (engine.capacity, engine.max_model_len) == (16, 2048)
    assert engine.healthy()


async def test_an_unknown_argument_is_named(engine_settings: Callable[..., Settings]) -> None:
    with pytest.raises(EngineDied, match="unrecognized arguments: --no-such-thing"):
        await VllmEngine(engine_settings(vllm_args="--no-such-thing")).start()


async def test_a_missing_model_is_not_replaced_by_vllms_default(engine_settings: Callable[..., Settings]) -> None:
    with pytest.raises(EngineDied, match="TAILRACE_MODEL"):
        await VllmEngine(engine_settings(model="")).start()


async def test_a_higher_priority_is_a_lower_number_for_vllm(
    engine: VllmEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = GenerationRequest("job", "chat", {}, priority=5)
    assert "priority" not in engine._body(request)
    monkeypatch.setattr(engine._llm.vllm_config.scheduler_config, "policy", "priority")
    assert engine._body(request)["priority"] == -5


async def test_the_users_arguments_win(engine: VllmEngine, engine_settings: Callable[..., Settings]) -> None:
    from workers.engines.vllm.setup import parse_args

    chosen = parse_args(engine_settings(vllm_args="--max-num-seqs 3 --dtype bfloat16 --served-model-name mine"))
    assert (chosen.max_num_seqs, chosen.dtype, chosen.served_model_name) == (3, "bfloat16", ["mine"])
