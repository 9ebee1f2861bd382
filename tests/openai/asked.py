"""The requests that are put to vLLM's own server and to Tailrace, to see where the answers differ."""

from typing import Any, NamedTuple

MODEL = "smollm2"


class Asked(NamedTuple):
    name: str
    path: str
    body: dict[str, Any] | None
    """None: a GET."""


FRANCE = [{"role": "user", "content": "What is the capital of France? Answer in one sentence."}]
CITY = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "weather", "parameters": CITY, "strict": True}}
FORCED = {"type": "function", "function": {"name": "weather"}}
JSON_SCHEMA = {"type": "json_schema", "json_schema": {"name": "city", "schema": CITY, "strict": True}}
USAGE = {"stream": True, "stream_options": {"include_usage": True}}


def chat(name: str, **parameters: Any) -> Asked:
    body = {"model": MODEL, "messages": FRANCE, "temperature": 0, "max_tokens": 24, **parameters}
    return Asked(name, "/v1/chat/completions", body)


def completion(name: str, **parameters: Any) -> Asked:
    body = {"model": MODEL, "prompt": "The capital of France is", "temperature": 0, "max_tokens": 8, **parameters}
    return Asked(name, "/v1/completions", body)


ASKED = [
    chat("chat"),
    chat("chat, streamed", stream=True),
    chat("chat, streamed, usage", **USAGE),
    chat("chat, logprobs", logprobs=True, top_logprobs=2, max_tokens=4),
    chat("chat, logprobs, streamed", logprobs=True, top_logprobs=2, max_tokens=4, stream=True),
    chat("chat, n", n=2, temperature=1, seed=1, max_tokens=6),
    chat("chat, n, streamed", n=2, temperature=1, seed=1, max_tokens=6, stream=True),
    chat("chat, stop", stop=["Paris"]),
    chat("chat, cut", max_tokens=3),
    chat("chat, tool", tools=[TOOL], tool_choice=FORCED, max_tokens=60),
    chat("chat, tool, streamed", tools=[TOOL], tool_choice=FORCED, max_tokens=60, **USAGE),
    chat("chat, tool, cut", tools=[TOOL], tool_choice=FORCED, max_tokens=8),
    chat("chat, tools not used", tools=[TOOL]),
    chat("chat, json_schema", response_format=JSON_SCHEMA),
    chat("chat, json_schema, streamed", response_format=JSON_SCHEMA, stream=True),
    chat("chat, vLLM's own parameters", top_k=5, min_p=0.1, repetition_penalty=1.1, min_tokens=3),
    chat("chat, store and tier", store=True, metadata={"a": "b"}, user="u", service_tier="flex"),
    completion("completion"),
    completion("completion, streamed, usage", **USAGE),
    completion("completion, logprobs, echo", logprobs=1, echo=True),
    completion("completion, two prompts", prompt=["One, two,", "The capital of France is"]),
    chat("bad temperature", temperature=-1),
    chat("bad temperature, streamed", temperature=-1, stream=True),
    chat("bad type", max_tokens="many"),
    chat("bad top_k", top_k=-5),
    chat("bad schema", response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "x"}}}),
    chat("bad tool_choice", tool_choice="auto"),
    chat("bad stream_options", stream_options={"include_usage": True}),
    chat("too long", messages=[{"role": "user", "content": "word " * 4000}]),
    chat("unknown model", model="gpt-6"),
    chat("prompt_logprobs", prompt_logprobs=1),
    chat("deprecated functions", functions=[{"name": "f"}]),
    chat("removed guided_json", guided_json=CITY),
    chat("no messages", messages=[]),
    Asked("models", "/v1/models", None),
    Asked("one model", f"/v1/models/{MODEL}", None),
    Asked("no such path", "/v1/nothing", None),
]
