"""`/v1/ws`: several generations over one WebSocket. The messages are listed in docs/websocket.md."""

import asyncio
import contextlib
import logging
from typing import Any

from fastapi import APIRouter, WebSocket, WebSocketDisconnect
from pydantic_core import to_json
from starlette.websockets import WebSocketState

from api.attachment import Attachment
from api.bodies import parse_json
from api.owned import owned_job, settled_job
from api.pod import Pod
from api.presence import cancel
from api.sends import SendTimedOut
from api.sse import parse_cursor
from api.steer import steer
from api.submit import checked_key, submit
from api.views.chunks import wire_error
from common.connections import translated
from common.errors import BadRequest, TailraceError, TooManyRequests
from common.events import DELTA, END, START, STARTED, Event, EventId
from common.records import JobRecord
from common.tasks import cancel_all

log = logging.getLogger(__name__)

router = APIRouter()

GENERATIONS_PER_SOCKET = 32
GOING_AWAY = 1012
"""Close code "service restart": the client should reconnect."""
UNAUTHORIZED = 4401
_SUBPROTOCOL = "tailrace"


@router.websocket("/v1/ws")
async def websocket(socket: WebSocket) -> None:
    pod: Pod = socket.app.state.pod
    offered = [name.strip() for name in socket.headers.get("sec-websocket-protocol", "").split(",")]
    await socket.accept(subprotocol=_SUBPROTOCOL if _SUBPROTOCOL in offered else None)
    try:
        pod.accept_work()
        owner = pod.keyring.owner(socket)
    except TailraceError as error:
        await socket.send_text(to_json({"type": "error", "error": error.to_dict()}).decode())
        await socket.close(GOING_AWAY if pod.draining else UNAUTHORIZED)
        return
    await Session(pod, socket, owner).run()


class Session:
    """One socket. Each generation is a task that follows its job; all send through one lock."""

    def __init__(self, pod: Pod, socket: WebSocket, owner: str) -> None:
        self._pod = pod
        self._socket = socket
        self._owner = owner
        self._sending = asyncio.Lock()
        self._following: dict[str, asyncio.Task[None]] = {}
        self._attachments: set[Attachment] = set()

    async def run(self) -> None:
        """Serve messages until the client leaves or the pod closes."""
        try:
            while True:
                await self._serve_one(await self._receive())
        except WebSocketDisconnect:
            pass
        except SendTimedOut:
            log.info("a WebSocket's client does not read, closed")
        finally:
            await cancel_all(list(self._following.values()))
            # Not left to the tasks: one that was cancelled before its first step never runs its cleanup.
            for attachment in list(self._attachments):
                attachment.close()

    async def _receive(self) -> str:
        message = await self._socket.receive()
        if message["type"] == "websocket.disconnect":
            raise WebSocketDisconnect(message.get("code", 1000))
        text: str | None = message.get("text")
        return text if text is not None else bytes(message["bytes"]).decode("utf-8", "replace")

    async def _serve_one(self, text: str) -> None:
        ref: Any = None
        try:
            message = parse_json(text)
            ref = message.pop("ref", None)
            await self._dispatch(message, ref)
        except TailraceError as error:
            await self._send_error(error, ref=ref)

    async def _dispatch(self, message: dict[str, Any], ref: Any) -> None:
        kind = message.pop("type", "stop" if message.get("stop") is True else None)
        if kind == "generate":
            await self._generate(message, ref)
        elif kind == "attach":
            await self._attach(message, ref)
        elif kind == "stop":
            await self._stop(message)
        elif kind == "update":
            await self._update(message, ref)
        else:
            raise BadRequest(f"Unknown message type {kind!r}; use generate, attach, stop or update.", param="type")

    async def _generate(self, message: dict[str, Any], ref: Any) -> None:
        self._check_room()
        key = checked_key(message.pop("idempotency_key", None), "idempotency_key")
        accepted = await submit(self._pod, "ws", message, self._owner, key=key, on_disconnect="cancel")
        await self._follow(accepted.record, START, ref)

    async def _attach(self, message: dict[str, Any], ref: Any) -> None:
        self._check_room()
        self._pod.accept_work()
        record = await owned_job(self._pod, _id_of(message), self._owner)
        cursor = parse_cursor(message.get("after") and str(message["after"]), "after")
        await self._follow(record, cursor.id, ref)

    async def _stop(self, message: dict[str, Any]) -> None:
        """Cancel one job, wherever it was started, or everything that this socket follows."""
        if "id" in message:
            job_id = _id_of(message)
            await owned_job(self._pod, job_id, self._owner)
            ids = [job_id]
        else:
            ids = list(self._following)
        for job_id in ids:
            with translated():
                await cancel(self._pod.jobs, self._pod.ender, job_id, "cancelled_by_client")

    async def _update(self, message: dict[str, Any], ref: Any) -> None:
        record = await settled_job(self._pod, _id_of(message), self._owner)
        changes = {name: value for name, value in message.items() if name != "id"}
        await steer(self._pod, record, changes)
        about = {"id": record.id} if ref is None else {"id": record.id, "ref": ref}
        await self._send({"type": "status", **about, "status": "updated", "parameters": changes})

    def _check_room(self) -> None:
        if len(self._following) >= GENERATIONS_PER_SOCKET:
            raise TooManyRequests(
                f"At most {GENERATIONS_PER_SOCKET} generations per socket.", code="too_many_generations", retry_after=1
            )

    async def _follow(self, record: JobRecord, cursor: EventId, ref: Any) -> None:
        if record.id in self._following:
            raise BadRequest("This socket follows that job already.", code="already_attached", param="id")
        attachment = Attachment(self._pod, record, cursor)
        await attachment.open()
        self._attachments.add(attachment)
        task = asyncio.create_task(self._tell(attachment, ref), name=f"ws {record.id}")
        self._following[record.id] = task
        task.add_done_callback(lambda _: self._following.pop(record.id, None))

    async def _tell(self, attachment: Attachment, ref: Any) -> None:
        """Follow one job to its end and send what it says."""
        record = attachment.record
        about = {"id": record.id} if ref is None else {"id": record.id, "ref": ref}
        try:
            await self._send({"type": "status", **about, "status": record.state})
            while said := await attachment.next():
                for id, event in said:
                    await self._send(_message(id, event, about))
            if not attachment.ended:
                await self._socket.close(GOING_AWAY)
        except TailraceError as error:
            await self._send_error(error, **about)
        except (WebSocketDisconnect, RuntimeError, TimeoutError) as error:
            # Sending to a socket that is gone, or whose client does not read: the receiving side ends the session.
            log.info("job %s: its WebSocket reader is gone: %s", record.id, error or type(error).__name__)
            with contextlib.suppress(RuntimeError):
                await self._socket.close()
        finally:
            self._attachments.discard(attachment)
            attachment.close()

    async def _send_error(self, error: TailraceError, **about: Any) -> None:
        about = {name: value for name, value in about.items() if value is not None}
        await self._send({"type": "error", **about, "error": error.to_dict()})

    async def _send(self, message: dict[str, Any]) -> None:
        """Raises TimeoutError when the client does not read."""
        async with self._sending:
            if self._socket.application_state == WebSocketState.CONNECTED:
                await self._pod.sends.send(self._socket.send_text, to_json(message).decode())


def _message(id: EventId | None, event: Event, about: dict[str, Any]) -> dict[str, Any]:
    """One log event as a server message. `event_id` is the cursor for a later attach."""
    about = about if id is None else {**about, "event_id": str(id)}
    kind = event["type"]
    if kind == DELTA:
        return {"type": "token", **about, **{k: v for k, v in event.items() if k not in ("type", "token_ids")}}
    if kind == STARTED:
        status = {"status": "running", "attempt": event["attempt"], "worker": event["worker"]}
        return {"type": "status", **about, **status}
    if kind == END:
        end = {k: v for k, v in event.items() if k != "type"}
        if end.get("error"):
            end["error"] = wire_error(end["error"])
        return {"type": "done", **about, **end}
    return {**about, **event}


def _id_of(message: dict[str, Any]) -> str:
    job_id = message.get("id")
    if not isinstance(job_id, str) or not job_id:
        raise BadRequest("'id' must be a job id.", param="id")
    return job_id
