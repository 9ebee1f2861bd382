"""LangChain's ChatOpenAI, with nothing changed but its base URL. It can use either of OpenAI's APIs."""

from collections.abc import AsyncIterator, Callable, Iterable
from functools import partial
from typing import Any, Literal

import httpx
import openai
import pytest
from langchain_core.messages import AIMessageChunk, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel

from tests.clients.conftest import KEY
from tests.support.client import Client, answer_to, chat
from tests.support.processes import Stack
from tests.support.wait import until

ENDLESS = 1_000_000
PARIS = '{"city": "Paris", "days": 3}'

Llm = Callable[..., ChatOpenAI]


@pytest.fixture
async def llm(system: Stack) -> AsyncIterator[Llm]:
    """A model as a user makes it: `llm(max_tokens=8)`. Its connections are closed with the test."""
    with httpx.Client() as http:
        async with httpx.AsyncClient() as async_http:
            usual = {"model": "simulated", "base_url": f"{system.apis[0].url}/v1", "api_key": KEY, "max_retries": 0}
            usual |= {"http_client": http, "http_async_client": async_http}
            yield lambda **options: ChatOpenAI(**{**usual, **options})


@pytest.fixture(params=[False, True], ids=["chat", "responses"])
def either(llm: Llm, request: pytest.FixtureRequest) -> Llm:
    return partial(llm, use_responses_api=request.param)


def joined(chunks: Iterable[Any]) -> AIMessageChunk:
    first, *rest = chunks
    assert rest, "it came in pieces"
    whole: AIMessageChunk = sum(rest, start=first)
    return whole


def test_invoke(llm: Llm) -> None:
    answer = llm(max_tokens=20, seed=3).invoke("hello")
    assert answer.content == answer_to(chat("hello", 20, seed=3))
    assert answer.response_metadata["finish_reason"] == "length"
    assert answer.response_metadata["model_name"] == "simulated"
    assert answer.usage_metadata
    assert answer.usage_metadata["output_tokens"] == 20


def test_stream(either: Llm) -> None:
    answer = joined(either(max_tokens=50, stream_usage=True).stream("hello"))
    assert answer.text == answer_to(chat("hello", 50))
    assert answer.usage_metadata
    assert answer.usage_metadata["output_tokens"] == 50


async def test_async_invoke_stream_and_batch(either: Llm) -> None:
    model = either(max_tokens=30)
    assert (await model.ainvoke("one")).text == answer_to(chat("one", 30))
    assert joined([chunk async for chunk in model.astream("two")]).text == answer_to(chat("two", 30))
    prompts: list[Any] = [f"prompt {i}" for i in range(8)]
    answers = await model.abatch(prompts)
    assert [answer.text for answer in answers] == [answer_to(chat(prompt, 30)) for prompt in prompts]


def test_batch_and_several_choices(llm: Llm) -> None:
    prompts: list[Any] = [f"prompt {i}" for i in range(8)]
    answers = llm(max_tokens=10).batch(prompts)
    assert [answer.content for answer in answers] == [answer_to(chat(prompt, 10)) for prompt in prompts]
    (choices,) = llm(max_tokens=10, n=3).generate([[HumanMessage("hello")]]).generations
    assert [choice.text for choice in choices] == [answer_to(chat("hello", 10, seed=seed)) for seed in range(3)]


@pytest.mark.parametrize("stop", [["three"], ["two", "three"]])
def test_stop_sequences(llm: Llm, stop: list[str]) -> None:
    answer = llm(model="echo").invoke("one two three", stop=stop)
    assert answer.content == "one two three".split(min(stop, key="one two three".find))[0]
    assert answer.response_metadata["finish_reason"] == "stop"


@tool
def forecast(city: str, days: int) -> str:
    """The weather of the coming days."""
    return f"{days} days of rain in {city}"


@tool
def restaurants(city: str, days: int) -> str:
    """Where to eat."""
    return city


def test_a_tool_call_and_its_answer(either: Llm) -> None:
    model = either(model="echo").bind_tools([forecast])
    question = HumanMessage(PARIS)
    called = model.invoke([question])
    (call,) = called.tool_calls
    assert (call["name"], call["args"]) == ("forecast", {"city": "Paris", "days": 3})
    answer = forecast.invoke(call)
    assert isinstance(answer, ToolMessage)
    assert model.invoke([question, called, answer]).text == "3 days of rain in Paris"


def test_streamed_tool_calls_are_whole(either: Llm) -> None:
    answer = joined(either(model="echo").bind_tools([forecast, restaurants]).stream(PARIS))
    assert not answer.invalid_tool_calls
    calls = [(call["id"], call["name"], call["args"]) for call in answer.tool_calls]
    arguments = {"city": "Paris", "days": 3}
    assert calls == [("call_0", "forecast", arguments), ("call_1", "restaurants", arguments)]


class Trip(BaseModel):
    city: str
    days: int


@pytest.mark.parametrize("method", ["json_schema", "function_calling", "json_mode"])
def test_structured_output(either: Llm, method: Literal["json_schema", "function_calling", "json_mode"]) -> None:
    model = either(model="echo").with_structured_output(Trip, method=method)
    assert model.invoke(PARIS) == Trip(city="Paris", days=3)


def test_responses_continue_each_other(llm: Llm) -> None:
    model = llm(model="echo", use_responses_api=True, use_previous_response_id=True)
    first = model.invoke("one")
    second = model.invoke([HumanMessage("one"), first, HumanMessage("two")])
    assert second.text == "two"
    assert second.usage_metadata
    assert second.usage_metadata["input_tokens"] == 3, "the upstream counts messages: all three were there"


def test_errors_are_openais(llm: Llm) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        llm(model="no-such-model").invoke("hello")
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.AuthenticationError) as unknown:
        llm(api_key="wrong").invoke("hello")
    assert unknown.value.code == "invalid_api_key"
    with pytest.raises(openai.BadRequestError) as wrong:
        llm(top_p=2).invoke("hello")
    assert wrong.value.param == "top_p"


def test_tailrace_options_go_along(llm: Llm) -> None:
    with pytest.raises(openai.APIStatusError) as late:
        llm(max_tokens=ENDLESS, extra_body={"tailrace": {"deadline_seconds": 0.2}}).invoke("hello")
    assert (late.value.status_code, late.value.code) == (504, "deadline_exceeded")


def give_up(model: ChatOpenAI) -> None:
    with pytest.raises(openai.APITimeoutError):
        model.invoke("hello", timeout=0.5)


def leave(model: ChatOpenAI) -> None:
    for _ in model.stream("hello"):
        break


@pytest.mark.parametrize("stop", [give_up, leave])
async def test_who_leaves_cancels_the_job(llm: Llm, pod: Client, stop: Callable[[ChatOpenAI], None]) -> None:
    before = await pod.metric("tailrace_jobs_submitted_total")
    stop(llm(max_tokens=ENDLESS))

    async def submitted() -> bool:
        return await pod.metric("tailrace_jobs_submitted_total") == before + 1

    async def nothing_runs() -> bool:
        return await pod.metric("tailrace_running_jobs") == 0

    await until(submitted, "the job was accepted")
    await until(nothing_runs, "the job is cancelled")
