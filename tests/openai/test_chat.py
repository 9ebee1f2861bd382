"""Chat completions through the OpenAI SDK: whole, streamed, and by its `stream()` helper."""

import json
from typing import Any

import pytest
from openai import AsyncOpenAI, LengthFinishReasonError, OpenAI, pydantic_function_tool
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.completion import Completion
from pydantic import BaseModel

from tests.openai.strict import check
from tests.support.client import MODEL, answer_to, chat
from tests.support.upstream import SCRIPTS, USAGE


def ask(script: str, **more: Any) -> dict[str, Any]:
    return {"model": "scripted", "messages": [{"role": "user", "content": script}], **more}


@pytest.mark.parametrize("script", SCRIPTS)
def test_every_field_is_one_of_the_sdks_types(scripted: OpenAI, script: str) -> None:
    whole = check(ChatCompletion, scripted.chat.completions.create(**ask(script)))
    chunks = list(scripted.chat.completions.create(**ask(script), stream=True, stream_options={"include_usage": True}))
    for chunk in chunks:
        check(ChatCompletionChunk, chunk)
    assert whole.usage
    assert whole.usage.to_dict() == USAGE
    assert chunks[-1].usage == whole.usage
    assert chunks[-1].choices == []
    # OpenAI: the field is there, and null, in all the other chunks.
    assert all(chunk.to_dict()["usage"] is None for chunk in chunks[:-1])
    assert {chunk.id for chunk in chunks} == {chunks[0].id}
    assert chunks[0].id.startswith("chatcmpl-")


@pytest.mark.parametrize("script", SCRIPTS)
def test_the_streamed_answer_is_the_whole_one(scripted: OpenAI, script: str) -> None:
    """By the SDK's own way of putting chunks together."""
    whole = scripted.chat.completions.create(**ask(script))
    state = ChatCompletionStreamState()
    for chunk in scripted.chat.completions.create(**ask(script), stream=True):
        state.handle_chunk(chunk)
    streamed = state.current_completion_snapshot
    for left, right in zip(whole.choices, sorted(streamed.choices, key=lambda choice: choice.index), strict=True):
        assert left.finish_reason == right.finish_reason
        assert (left.message.content or None, left.message.refusal) == (right.message.content, right.message.refusal)
        assert (left.logprobs and left.logprobs.content) == (right.logprobs and right.logprobs.content)
        assert list(map(_call, left.message.tool_calls or ())) == list(map(_call, right.message.tool_calls or ()))


def _call(call: Any) -> tuple[str, str, str, str]:
    return call.id, call.type, call.function.name, call.function.arguments


class Weather(BaseModel):
    """The weather in a city."""

    city: str


def test_tool_calls_through_the_stream_helper(scripted: OpenAI) -> None:
    tools = [pydantic_function_tool(Weather, name="weather")]
    pieces, done = [], []
    with scripted.chat.completions.stream(**ask("two tools"), tools=tools) as stream:
        for event in stream:
            if event.type == "tool_calls.function.arguments.delta":
                pieces.append((event.index, event.arguments_delta))
            elif event.type == "tool_calls.function.arguments.done":
                done.append((event.index, event.parsed_arguments))
        message = stream.get_final_completion().choices[0].message
    assert done == [(0, Weather(city="Paris")), (1, Weather(city="Rome"))]
    assert "".join(text for index, text in pieces if index == 0) == '{"city": "Paris"}'
    assert message.content == "Let me see. "
    assert [call.id for call in message.tool_calls or ()] == ["call-a", "call-b"]


def test_a_parsed_answer(scripted: OpenAI) -> None:
    class City(BaseModel):
        city: str
        large: bool

    answer = scripted.chat.completions.parse(**ask("json"), response_format=City)
    assert answer.choices[0].message.parsed == City(city="Rome", large=True)


def test_a_parsed_answer_that_was_cut_is_an_error_of_the_sdks(scripted: OpenAI) -> None:
    with pytest.raises(LengthFinishReasonError):
        scripted.chat.completions.parse(**ask("logprobs"), response_format=Weather)


def test_reasoning_is_a_field_of_its_own(scripted: OpenAI) -> None:
    message = scripted.chat.completions.create(**ask("reasoning")).choices[0].message
    assert message.content == "2"
    assert message.model_extra == {"reasoning": "One plus one is two."}
    deltas = [chunk.choices[0].delta for chunk in scripted.chat.completions.create(**ask("reasoning"), stream=True)]
    assert "".join((delta.model_extra or {}).get("reasoning", "") for delta in deltas) == "One plus one is two."


def test_a_refusal(scripted: OpenAI) -> None:
    message = scripted.chat.completions.create(**ask("refusal")).choices[0].message
    assert (message.content, message.refusal) == (None, "I will not.")


def test_logprobs(scripted: OpenAI) -> None:
    logprobs = scripted.chat.completions.create(**ask("logprobs", logprobs=True, top_logprobs=2)).choices[0].logprobs
    assert logprobs
    assert [(token.token, len(token.top_logprobs)) for token in logprobs.content or ()] == [("a", 2), ("b", 2)]


def test_several_choices(sdk: OpenAI) -> None:
    body = chat("several", 6, n=2)
    whole = check(ChatCompletion, sdk.chat.completions.create(**body))
    expected = [answer_to({**body, "seed": seed}) for seed in (0, 1)]
    assert [choice.message.content for choice in whole.choices] == expected
    texts = ["", ""]
    for chunk in sdk.chat.completions.create(**body, stream=True):
        for choice in check(ChatCompletionChunk, chunk).choices:
            texts[choice.index] += choice.delta.content or ""
    assert texts == expected


async def test_the_asynchronous_client(async_sdk: AsyncOpenAI) -> None:
    body = chat("async", 12)
    whole = await async_sdk.chat.completions.create(**body)
    assert whole.choices[0].message.content == answer_to(body)
    async with async_sdk.chat.completions.stream(**body) as stream:
        done = [event.content async for event in stream if event.type == "content.done"]
    assert done == [answer_to(body)]


def test_the_raw_response_has_the_jobs_id(sdk: OpenAI) -> None:
    raw = sdk.chat.completions.with_raw_response.create(**chat("raw", 3))
    assert raw.headers["x-job-id"] == raw.parse().id
    assert json.loads(raw.text)["object"] == "chat.completion"
    with sdk.chat.completions.with_streaming_response.create(**chat("raw", 3), stream=True) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        ids = {chunk.id for chunk in response.parse()}
        assert ids == {response.headers["x-job-id"]}


def test_text_completions(sdk: OpenAI) -> None:
    body: dict[str, Any] = {"model": MODEL, "prompt": "text", "max_tokens": 5, "n": 2}
    whole = check(Completion, sdk.completions.create(**body))
    assert whole.choices[0].text == answer_to(body)
    texts = ["", ""]
    for chunk in sdk.completions.create(**body, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    assert texts == [choice.text for choice in whole.choices]
