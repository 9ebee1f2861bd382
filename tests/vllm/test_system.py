"""The whole system on real vLLM, used through the OpenAI SDK as its users do: pods, queue, worker, streams."""

import asyncio
import json
import os
import secrets
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Literal

import jsonschema
import psutil
import pytest
from openai import AsyncOpenAI, BadRequestError, pydantic_function_tool
from openai.types.chat import ChatCompletionChunk
from pydantic import BaseModel
from redis.asyncio import Redis

from common.eventlog import EventLog
from common.fleet import Fleet
from common.keys import Keys
from tests.openai.strict import check
from tests.responses.support import check_sequence, sdk, text_of
from tests.support.client import Client, Heard
from tests.support.processes import RedisServer, Stack, lives
from tests.support.wait import until
from tests.vllm.conftest import ARGS

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]

MODEL = "smollm2"
QUESTION: list[Any] = [{"role": "user", "content": "What is the capital of France? Answer in one sentence."}]
LONG: list[Any] = [{"role": "user", "content": "Tell me a long story about a river."}]


@pytest.fixture(scope="module")
def real(redis_server: RedisServer, small_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Two pods and one worker with vLLM."""
    stack = Stack(
        redis_server.url,
        tmp_path_factory.mktemp("vllm"),
        f"t{secrets.token_hex(4)}",
        engine="vllm",
        model=small_model,
        served_model_name=MODEL,
        vllm_args=ARGS,
        presence_ttl_seconds=2,
    )
    stack.worker(ready=False)
    stack.api()
    stack.api()
    stack.wait_for_worker()
    yield stack
    stack.stop()


@pytest.fixture
async def openai(real: Stack) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=f"{real.apis[0].url}/v1", api_key="unused", max_retries=0) as client:
        yield client


@pytest.fixture
async def pods(real: Stack) -> AsyncIterator[list[Client]]:
    async with Client(real.apis[0].url) as here, Client(real.apis[1].url) as there:
        yield [here, there]


async def vllm_is_idle(real: Stack, redis: Redis) -> None:
    """By vLLM's own count of unfinished requests."""

    async def idle() -> bool:
        return all(worker.engine_running == 0 for worker in await Fleet(redis, Keys(real.namespace)).workers())

    await until(idle, "vLLM holds no request")


async def test_models(openai: AsyncOpenAI) -> None:
    models = [model async for model in openai.models.list()]
    assert [model.id for model in models] == [MODEL]


async def test_chat_whole_and_streamed_agree(openai: AsyncOpenAI) -> None:
    whole = await openai.chat.completions.create(model=MODEL, messages=QUESTION, max_tokens=40, temperature=0)
    text = whole.choices[0].message.content
    assert text
    assert "Paris" in text
    assert whole.usage
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens
    stream = await openai.chat.completions.create(
        model=MODEL,
        messages=QUESTION,
        max_tokens=40,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    parts, usage, roles, reasons = [], None, [], []
    async for chunk in stream:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            parts.append(choice.delta.content or "")
            roles.append(choice.delta.role)
            reasons.append(choice.finish_reason)
    assert "".join(parts) == text
    assert usage == whole.usage
    assert [role for role in roles if role] == ["assistant"]
    assert [reason for reason in reasons if reason] == [whole.choices[0].finish_reason]


async def test_completion_whole_and_streamed_agree(openai: AsyncOpenAI) -> None:
    asked: dict[str, Any] = {"model": MODEL, "prompt": "Once upon a time", "max_tokens": 20, "temperature": 0}
    whole = await openai.completions.create(**asked)
    assert whole.usage
    assert whole.usage.completion_tokens == 20
    stream = await openai.completions.create(**asked, stream=True)
    assert "".join([chunk.choices[0].text async for chunk in stream]) == whole.choices[0].text


async def test_json_schema(openai: AsyncOpenAI) -> None:
    schema = {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 20}, "large": {"type": "boolean"}},
        "required": ["city", "large"],
        "additionalProperties": False,
    }
    answer = await openai.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "Describe Paris as JSON."}],
        max_tokens=80,
        temperature=0,
        response_format={"type": "json_schema", "json_schema": {"name": "city", "schema": schema, "strict": True}},
    )
    jsonschema.validate(json.loads(answer.choices[0].message.content or ""), schema)


async def test_tools_are_accepted_and_a_named_one_is_called(openai: AsyncOpenAI) -> None:
    parameters = {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 12}},
        "required": ["city"],
        "additionalProperties": False,
    }
    # Without `strict` vLLM leaves the arguments to the model, and this one is small.
    function = {"name": "weather", "description": "d", "parameters": parameters, "strict": True}
    tool: Any = {"type": "function", "function": function}
    free = await openai.chat.completions.create(model=MODEL, messages=QUESTION, tools=[tool], max_tokens=10)
    assert free.choices[0].finish_reason
    named = await openai.chat.completions.create(
        model=MODEL,
        messages=QUESTION,
        tools=[tool],
        tool_choice={"type": "function", "function": {"name": "weather"}},
        max_tokens=60,
        temperature=0,
    )
    calls = named.choices[0].message.tool_calls
    assert calls
    assert calls[0].type == "function"
    assert calls[0].function.name == "weather"
    jsonschema.validate(json.loads(calls[0].function.arguments), parameters)


async def test_responses(openai: AsyncOpenAI, real: Stack) -> None:
    """Streamed in the background, again from the other pod, gone on with; and a format that vLLM keeps to."""
    asked: dict[str, Any] = {"model": MODEL, "max_output_tokens": 40, "temperature": 0}
    question = QUESTION[0]["content"]
    stream = await openai.responses.create(**asked, input=question, background=True, stream=True)
    said = [event.to_dict(mode="json") async for event in stream]
    check_sequence(said)
    first = said[-1]["response"]
    assert first["usage"]["output_tokens"] > 0
    async with sdk(real.apis[1].url) as there:
        replay = await there.responses.retrieve(first["id"], stream=True, starting_after=4)
        assert [event.to_dict(mode="json") async for event in replay] == said[5:]
    chat = await openai.chat.completions.create(model=MODEL, messages=QUESTION, max_tokens=40, temperature=0)
    assert text_of(said) == chat.choices[0].message.content, "the same question as a chat"
    schema = {"type": "object", "properties": {"large": {"type": "boolean"}}, "required": ["large"]}
    closed = {**schema, "additionalProperties": False}
    format: Any = {"format": {"type": "json_schema", "name": "city", "schema": closed, "strict": True}}
    going_on = {**asked, "previous_response_id": first["id"], "input": "Is it large? Answer as JSON."}
    jsonschema.validate(json.loads((await openai.responses.create(**going_on, text=format)).output_text), closed)


async def test_a_streamed_tool_call_is_complete_for_the_sdks_stream_helper(openai: AsyncOpenAI) -> None:
    class Weather(BaseModel):
        """The weather in a city."""

        city: Literal["Paris", "Rome"]

    tool = pydantic_function_tool(Weather, name="weather")
    asked: dict[str, Any] = {"model": MODEL, "messages": QUESTION, "tools": [tool], "max_tokens": 60, "temperature": 0}
    done = []
    forced: Any = {"type": "function", "function": {"name": "weather"}}
    async with openai.chat.completions.stream(**asked, tool_choice=forced) as stream:
        async for event in stream:
            if event.type == "chunk":
                check(ChatCompletionChunk, event.chunk)
            elif event.type == "tool_calls.function.arguments.done":
                done.append(event.parsed_arguments)
        message = (await stream.get_final_completion()).choices[0].message
    assert len(done) == 1
    assert isinstance(done[0], Weather)
    assert [call.function.parsed_arguments for call in message.tool_calls or ()] == done


async def test_logprobs(openai: AsyncOpenAI) -> None:
    answer = await openai.chat.completions.create(
        model=MODEL, messages=QUESTION, max_tokens=5, temperature=0, logprobs=True, top_logprobs=2
    )
    logprobs = answer.choices[0].logprobs
    assert logprobs
    assert logprobs.content
    assert len(logprobs.content) == 5
    assert all(len(token.top_logprobs) == 2 for token in logprobs.content)
    assert "".join(token.token for token in logprobs.content) == answer.choices[0].message.content


async def test_several_choices(openai: AsyncOpenAI) -> None:
    answer = await openai.chat.completions.create(
        model=MODEL, messages=LONG, max_tokens=12, n=2, temperature=1.0, seed=1
    )
    assert [choice.index for choice in answer.choices] == [0, 1]
    assert answer.choices[0].message.content != answer.choices[1].message.content
    assert answer.usage
    assert answer.usage.completion_tokens == 24


async def test_stop_strings_and_seeds(openai: AsyncOpenAI) -> None:
    asked: dict[str, Any] = {"model": MODEL, "messages": QUESTION, "max_tokens": 40, "temperature": 0}
    whole = (await openai.chat.completions.create(**asked)).choices[0].message.content or ""
    cut = await openai.chat.completions.create(**asked, stop=["Paris"])
    assert cut.choices[0].message.content == whole.split("Paris")[0]
    assert cut.choices[0].finish_reason == "stop"
    warm = {**asked, "temperature": 1.0, "seed": 42, "max_tokens": 10}
    first, second = [(await openai.chat.completions.create(**warm)).choices[0].message.content for _ in range(2)]
    assert first == second


async def test_the_engines_own_refusals_are_real_errors(openai: AsyncOpenAI, real: Stack, redis: Redis) -> None:
    """A prompt longer than the context, in both ways to notice it, and a parameter that only vLLM knows is wrong."""
    for words in (3_000, 300_000):
        with pytest.raises(BadRequestError) as caught:
            await openai.chat.completions.create(
                model=MODEL, messages=[{"role": "user", "content": "river " * words}], max_tokens=5
            )
        assert caught.value.code == "context_length_exceeded"
    for stream in (True, False):
        with pytest.raises(BadRequestError) as caught:
            await openai.chat.completions.create(
                model=MODEL, messages=QUESTION, stream=stream, max_tokens=5, extra_body={"top_k": -5}
            )
        assert caught.value.type == "invalid_request_error"
    await vllm_is_idle(real, redis)
    assert await redis.zcard(Keys(real.namespace).queue(MODEL)) == 0


async def test_cut_and_resume_through_the_other_pod(pods: list[Client]) -> None:
    body = {"model": MODEL, "messages": LONG, "max_tokens": 60, "temperature": 0.8}
    job_id = await pods[0].submit(body)
    heard = Heard()
    turn = 0
    while not heard.end:
        await pods[turn % 2].read(job_id, heard, stop_after=5)
        turn += 1
    record = await pods[0].job(job_id)
    assert turn > 2
    assert heard.text == record["output"]["choices"][0]["message"]["content"]


async def test_cancel_and_disconnect_stop_vllm(pods: list[Client], real: Stack, redis: Redis) -> None:
    body = {"model": MODEL, "messages": LONG, "max_tokens": 1500, "ignore_eos": True}
    job_id = await pods[0].submit(body)
    reading = asyncio.create_task(pods[0].read(job_id))
    await pods[1].read(job_id, stop_after=2)
    assert (await pods[1].post(f"/v1/jobs/{job_id}/cancel")).status_code == 200
    heard = await reading
    assert heard.end
    assert heard.end["status"] == "cancelled"
    assert heard.end["usage"]["prompt_tokens"] > 0
    assert 0 < heard.end["usage"]["completion_tokens"] < 1500
    await vllm_is_idle(real, redis)
    async with pods[0].stream("POST", "/v1/chat/completions", json={**body, "stream": True}) as response:
        async for _ in response.aiter_lines():
            break
    await vllm_is_idle(real, redis)


async def token_ids(redis: Redis, real: Stack, job_id: str) -> list[int]:
    log = await EventLog(redis, Keys(real.namespace)).read_all(job_id)
    return [id for _, event in log for id in event.get("token_ids", ())]


async def test_the_text_is_that_of_the_tokens(pods: list[Client], real: Stack, redis: Redis, small_model: Path) -> None:
    """What readers get is what the model's own tokenizer makes of the generated ids, to the last character."""
    from transformers import AutoTokenizer

    decode = AutoTokenizer.from_pretrained(small_model).decode
    for content in ("Say hello.", "Write emojis: 😀🚀", "Schreibe über München."):
        body = {"model": MODEL, "messages": [{"role": "user", "content": content}], "max_tokens": 30, "temperature": 0}
        job_id = await pods[0].submit(body)
        heard = await pods[0].read(job_id)
        assert heard.text == decode(await token_ids(redis, real, job_id), skip_special_tokens=True)


async def test_steering_continues_as_the_greedy_continuation_does(
    pods: list[Client], real: Stack, redis: Redis, small_model: Path
) -> None:
    """Hot until the change, then token for token what temperature 0 says after the same prefix, in one stream."""
    from transformers import AutoTokenizer  # here, because it takes seconds to import

    prompt = "The river rises in the mountains and"
    body = {"model": MODEL, "prompt": prompt, "max_tokens": 160, "temperature": 1.5, "seed": 7, "ignore_eos": True}
    job_id = await pods[0].submit(body)
    heard = Heard()
    reading = asyncio.create_task(pods[0].read(job_id, heard))
    await until(lambda: len(heard.ids) > 10, "it is under way")
    assert (await pods[1].patch(f"/v1/jobs/{job_id}", json={"temperature": 0})).status_code == 200
    await reading
    assert len(heard.started) == 1
    ids = await token_ids(redis, real, job_id)
    assert len(ids) == 160
    line = next(line for line in real.workers[0].log.splitlines() if f"{job_id}: continues under new" in line)
    cut = int(line.split("after ")[1].split()[0])
    assert 5 < cut < 160
    prefix = AutoTokenizer.from_pretrained(small_model)(prompt).input_ids + ids[:cut]
    greedy = await pods[0].submit({**body, "prompt": prefix, "temperature": 0, "max_tokens": 160 - cut})
    await pods[0].read(greedy)
    assert await token_ids(redis, real, greedy) == ids[cut:]


async def test_a_crowd(openai: AsyncOpenAI) -> None:
    """More requests than slots: all are answered, each with its own answer."""
    asked: dict[str, Any] = {"model": MODEL, "max_tokens": 6, "temperature": 0}

    async def ask(word: str) -> str:
        message: Any = {"role": "user", "content": f"Repeat the word {word}."}
        answer = await openai.chat.completions.create(messages=[message], **asked)
        return answer.choices[0].message.content or ""

    words = [f"w{i}" for i in range(24)]
    answers = await asyncio.gather(*(ask(word) for word in words))
    assert all(answers)


async def test_a_killed_worker_does_not_show(pods: list[Client], real: Stack) -> None:
    """SIGKILL in mid-answer: another vLLM continues it to the very text of an undisturbed run, on one connection."""
    real.worker()
    body = {"model": MODEL, "messages": LONG, "max_tokens": 120, "temperature": 0, "ignore_eos": True}
    undisturbed = [await pods[0].read(await pods[0].submit(body)) for _ in range(2)]
    assert undisturbed[0].text == undisturbed[1].text, "plain runs agree on this prompt"
    job_id = await pods[0].submit(body)
    heard = Heard()
    reading = asyncio.create_task(pods[0].read(job_id, heard))
    await until(lambda: len(heard.ids) > 20, "it is under way")
    runs_it = next(worker for worker in real.workers if f"-{worker.pid}-" in heard.started[0]["worker"])
    children = psutil.Process(runs_it.pid).children(recursive=True)
    assert children
    os.kill(runs_it.pid, signal.SIGKILL)  # the one process, as the kernel's OOM killer would
    await reading
    assert heard.text == undisturbed[0].text
    assert heard.end
    assert undisturbed[0].end
    assert heard.end["finish_reason"] == undisturbed[0].end["finish_reason"] == "length"
    assert heard.end["usage"] == undisturbed[0].end["usage"]
    assert [event["attempt"] for event in heard.started] == [1, 2]
    await until(lambda: not any(lives(child) for child in children), "no vLLM process is left behind")
