"""Finding a response, and the conversation that it ends or goes on with."""

from typing import Any

import msgpack

from api.owned import settled
from api.pod import Pod
from api.responses.body import ResponseBody
from api.responses.items import Message, messages_of, parse_items
from api.responses.machine import whole
from api.responses.translate import chat_body, kept
from common.connections import translated
from common.errors import BadRequest, NotFound
from common.records import JobRecord


async def stored_response(pod: Pod, response_id: str, owner: str) -> JobRecord:
    """The job of a response of `owner`'s, as it is once its log has ended, if it has.

    Raises NotFound, also for one that was made with `store` = false.
    """
    with translated():
        record = await pod.jobs.get(response_id)
        if record and record.owner == owner and record.response and record.response["store"] and not record.deleted:
            record = await settled(pod, record)
            if record:
                return record
    raise NotFound(f"Response with id {response_id[:100]!r} not found.", param="response_id")


async def asked(pod: Pod, body: ResponseBody, owner: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """What a request for a response becomes: the body of a chat, and what is kept beside it. Raises BadRequest."""
    items = parse_items(body.input)
    messages = messages_of(items)
    if body.previous_response_id is not None:
        messages = [*await conversation_until(pod, body.previous_response_id, owner), *messages]
        check_length(messages, pod.settings.max_body_bytes)
    return chat_body(body, messages), kept(body, items)


async def conversation_until(pod: Pod, response_id: str, owner: str) -> list[Message]:
    """What was said up to and with a response, without its instructions. Raises BadRequest.

    One record has it all: its messages hold those of all responses before it, so that they may expire.
    """
    try:
        record = await stored_response(pod, response_id, owner)
    except NotFound:
        raise BadRequest(
            f"Previous response with id {response_id[:100]!r} not found.",
            code="previous_response_not_found",
            param="previous_response_id",
        ) from None
    if record.state not in ("completed", "incomplete") or record.result is None or record.response is None:
        raise BadRequest(
            f"Previous response with id {response_id!r} cannot be continued: it is {record.state}.",
            code="previous_response_not_completed",
            param="previous_response_id",
        )
    instructed = record.response["echo"]["instructions"] is not None
    answer = whole(record, record.result, record.end_event())
    return [*record.body["messages"][1 if instructed else 0 :], *messages_of(answer["output"])]


def check_length(messages: list[Message], limit: int) -> None:
    """Raises BadRequest for a conversation of more than `limit` bytes: each of its responses keeps all of it."""
    if len(msgpack.packb(messages)) > limit:
        raise BadRequest(
            f"The conversation is larger than {limit} bytes; begin a new one.",
            code="conversation_too_large",
            param="previous_response_id",
        )
