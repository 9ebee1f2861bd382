"""`store`: completions that can be had again by their id, by whoever made them."""

import hashlib
from typing import Any

import pytest
from openai import NotFoundError, OpenAI
from openai.types.chat import ChatCompletion, ChatCompletionDeleted

from tests.conftest import MakeStack
from tests.openai.strict import check
from tests.support.client import Client, chat

KEYS = ",".join(f"{name}:{hashlib.sha256(name.encode()).hexdigest()}" for name in ("alice", "bob"))
"""Two keys that are their owners' names."""


def test_a_stored_completion_is_the_one_that_was_answered(sdk: OpenAI) -> None:
    made = sdk.chat.completions.create(**chat("stored", 5), store=True, metadata={"a": "b"}, service_tier="flex")
    again = check(ChatCompletion, sdk.chat.completions.retrieve(made.id))
    assert again.to_dict() == made.to_dict()
    assert again.metadata == {"a": "b"}


def test_a_streamed_one_is_stored_as_well(sdk: OpenAI) -> None:
    chunks = list(sdk.chat.completions.create(**chat("stored", 5), store=True, stream=True))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    again = sdk.chat.completions.retrieve(chunks[0].id)
    assert again.choices[0].message.content == text
    assert again.metadata == {}


def test_its_messages(sdk: OpenAI) -> None:
    parts = [{"type": "text", "text": "two "}, {"type": "text", "text": "parts"}]
    said: Any = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": parts},
        {"role": "assistant", "content": "Yes?"},
        {"role": "user", "content": "Go on."},
    ]
    made = sdk.chat.completions.create(**{**chat("", 2), "messages": said}, store=True)
    paged = list(sdk.chat.completions.messages.list(made.id, limit=3))
    assert [message.role for message in paged] == ["system", "user", "assistant", "user"]
    assert [message.content for message in paged] == ["Be brief.", None, "Yes?", "Go on."]
    assert [part.to_dict() for part in paged[1].content_parts or ()] == parts
    backwards = sdk.chat.completions.messages.list(made.id, order="desc", limit=1)
    assert (backwards.data, backwards.has_more) == ([paged[-1]], True)
    with pytest.raises(NotFoundError):
        sdk.chat.completions.messages.list(made.id, after="nothing")


async def test_a_deleted_one_is_gone_and_its_job_with_it(sdk: OpenAI, client: Client) -> None:
    made = sdk.chat.completions.create(**chat("gone", 2), store=True)
    deleted = check(ChatCompletionDeleted, sdk.chat.completions.delete(made.id))
    assert (deleted.id, deleted.deleted) == (made.id, True)
    for again in (sdk.chat.completions.retrieve, sdk.chat.completions.delete):
        with pytest.raises(NotFoundError):
            again(made.id)
    assert (await client.get(f"/v1/jobs/{made.id}")).status_code == 404


async def test_what_was_not_stored_or_is_not_complete_is_not_found(sdk: OpenAI, client: Client) -> None:
    plain = sdk.chat.completions.create(**chat("plain", 2)).id
    running = await client.submit(chat("running", 1_000_000, store=True))
    for completion_id in (plain, running, "chatcmpl-unknown"):
        with pytest.raises(NotFoundError) as caught:
            sdk.chat.completions.retrieve(completion_id)
        assert caught.value.code == "completion_not_found"
    await client.post(f"/v1/jobs/{running}/cancel")
    await client.read(running)
    with pytest.raises(NotFoundError):
        sdk.chat.completions.retrieve(running)


def test_somebody_elses_is_not_found(make_stack: MakeStack) -> None:
    stack = make_stack(api_keys=KEYS)
    url = f"{stack.api().url}/v1"
    stack.worker()
    with OpenAI(base_url=url, api_key="alice") as alice, OpenAI(base_url=url, api_key="bob") as bob:
        made = alice.chat.completions.create(**chat("mine", 2), store=True)
        for theirs in (bob.chat.completions.retrieve, bob.chat.completions.delete, bob.chat.completions.messages.list):
            with pytest.raises(NotFoundError):
                theirs(made.id)
        assert alice.chat.completions.retrieve(made.id).id == made.id
