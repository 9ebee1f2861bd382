"""One reader's ear: checks each token and each event id as it comes, over any number of connections and protocols."""

from typing import Any

from common.events import EventId
from tests.chaos.ledger import Ledger
from tests.chaos.plan import Plan
from tests.support.client import SseEvent

WHOLE = 1 << 30
"""Part number of an event id without `.n`: after all parts of its entry."""

DONE = "done"
"""A chat stream does not say whether its answer is `completed` or `incomplete`."""


class CannotFollow(Exception):
    """The server says that this stream cannot be followed any further; `code` says why."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


class Listener:
    def __init__(self, name: str, plan: Plan, job_id: str, ledger: Ledger) -> None:
        self.name = f"{name} of {job_id} (n={plan.n})"
        self.job_id = job_id
        self.next = 0
        """How many tokens of the answer have come, counting from the first without a hole."""
        self.missing: set[int] = set()
        self.last_id: str | None = None
        self.status: str | None = None
        self.gone = False
        """The job was deleted under the reader, so that it was told so and not the end."""
        self._chat_error: str | None = None
        self._position = EventId(0, 0), WHOLE
        self._expected = plan.expected
        self._ledger = ledger

    @property
    def ended(self) -> bool:
        return self.status is not None or self.gone

    def native(self, event: SseEvent) -> None:
        if event.event == "error":
            raise CannotFollow(event.json["error"]["code"])
        self._id(event.id, whole_log=True)
        if event.event == "delta":
            self._tokens(event.json.get("content", ""))
        elif event.event == "end":
            self._end(event.json["status"], event.id)

    def chat(self, event: SseEvent) -> None:
        if event.data == "[DONE]":
            if event.id is not None:
                self._id(event.id, whole_log=False)
                self._end(self._chat_error or DONE, event.id)
            return
        chunk = event.json
        if "error" in chunk:
            if event.id is None:
                raise CannotFollow(chunk["error"]["code"])
            self._chat_error = "cancelled" if chunk["error"]["code"] == "job_cancelled" else "failed"
        self._id(event.id, whole_log=False)
        for choice in chunk.get("choices", ()):
            self._tokens(choice["delta"].get("content") or "")

    def socket(self, message: dict[str, Any]) -> None:
        if message["type"] == "error":
            raise CannotFollow(message["error"]["code"])
        event_id = message.get("event_id")
        if event_id is not None:
            self._id(event_id, whole_log=True)
        if message["type"] == "token":
            self._tokens(message.get("content", ""))
        elif message["type"] == "done":
            self._end(message["status"], event_id)

    def whole(self, completion: dict[str, Any]) -> None:
        """An answer in one piece."""
        choice = completion["choices"][0]
        self._tokens(choice["message"]["content"])
        self._end(DONE, None)

    def _id(self, text: str | None, *, whole_log: bool) -> None:
        """`whole_log`: this view shows every entry, so that the next id is known in advance."""
        if text is None:
            return
        plain, _, part = text.partition(".")
        id = EventId.parse(plain)
        last, last_part = self._position
        self._position = id, int(part or WHOLE)
        self.last_id = text
        if self._position <= (last, last_part):
            self._ledger.find("doubled" if id == last else "reordered", f"{self.name}: event {text} after {last}")
        if id.attempt < last.attempt:
            self._ledger.find("reordered", f"{self.name}: attempt of {text} after {last}")
        if whole_log and id.seq > last.seq + 1:
            self._ledger.find("lost", f"{self.name}: event {text} after {last}")

    def _tokens(self, content: str) -> None:
        *tokens, rest = content.split(" ")
        if rest:
            self._ledger.find("lost", f"{self.name}: a torn token {rest!r} at {self.last_id}")
        for token in tokens:
            self._token(token + " ")
        if tokens:
            self._ledger.counts["tokens"] += len(tokens)
            self._ledger.heard(self.job_id, self._position[0].attempt)

    def _token(self, token: str) -> None:
        i = int(token.partition(":")[0])
        if i >= len(self._expected) or token != self._expected[i]:
            self._ledger.find("reordered", f"{self.name}: {token!r} at {self.last_id} is not of this answer")
        elif i == self.next:
            self.next += 1
        elif i > self.next:
            # Only noted: whether they are lost or late is known at the end.
            self._ledger.say(f"{self.name}: tokens {self.next} to {i - 1} are missing at {self.last_id}")
            self.missing.update(range(self.next, i))
            self.next = i + 1
        elif i in self.missing:
            self.missing.remove(i)
            self._ledger.find("reordered", f"{self.name}: token {i} came late, at {self.last_id}")
        else:
            self._ledger.find("doubled", f"{self.name}: token {i} again, at {self.last_id}")

    def _end(self, status: str, id: str | None) -> None:
        if self.status is not None:
            self._ledger.find("doubled", f"{self.name}: a second end, {status} at {id} after {self.status}")
        self.status = status
