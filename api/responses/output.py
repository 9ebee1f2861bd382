"""A response's output items while they grow: the events that tell them, and the items themselves.

Ids are made of the response's id and the item's place, so that every replay says the same.
"""

from typing import Any, ClassVar

Event = dict[str, Any]


class OutputItem:
    """Grows by `add`; `begin` and `finish` are the events around that. Subclasses are the kinds of items."""

    prefix: ClassVar[str]
    """Of the item's id."""
    told_as: ClassVar[str]
    """Prefix of the types of the events that tell what is in the item."""

    def __init__(self, response_id: str, index: int) -> None:
        self.index = index
        self.id = f"{self.prefix}_{response_id.removeprefix('resp_')}_{index}"
        self._pieces: list[str] = []

    @property
    def text(self) -> str:
        return "".join(self._pieces)

    def begin(self) -> list[Event]:
        return [{"type": "response.output_item.added", "output_index": self.index, "item": self.item("in_progress")}]

    def add(self, piece: str) -> Event:
        """The event of a piece of text, or of arguments."""
        self._pieces.append(piece)
        return self._about("delta", delta=piece)

    def finish(self, status: str) -> list[Event]:
        return [{"type": "response.output_item.done", "output_index": self.index, "item": self.item(status)}]

    def item(self, status: str) -> dict[str, Any]:
        """The item as it is now, without what is in it while it is in progress."""
        raise NotImplementedError

    def _about(self, what: str, **more: Any) -> Event:
        return {"type": f"{self.told_as}.{what}", "item_id": self.id, "output_index": self.index, **more}


class CallItem(OutputItem):
    """One function call. `call` is its index among the answer's calls."""

    prefix = "fc"
    told_as = "response.function_call_arguments"

    def __init__(self, response_id: str, index: int, call: int, call_id: str | None, name: str) -> None:
        super().__init__(response_id, index)
        self.call = call
        self._call_id = call_id or f"call_{response_id.removeprefix('resp_')}_{index}"
        self._name = name

    def finish(self, status: str) -> list[Event]:
        return [self._about("done", arguments=self.text), *super().finish(status)]

    def item(self, status: str) -> dict[str, Any]:
        called = {"call_id": self._call_id, "name": self._name, "arguments": self.text}
        return {"id": self.id, "type": "function_call", "status": status, **called}


class _TextItem(OutputItem):
    """An item with one part, which is text."""

    text_field: ClassVar[str] = "text"
    """What the part, and the event that it is done, call the text."""

    def begin(self) -> list[Event]:
        return [*super().begin(), self._about_part("added", "")]

    def finish(self, status: str) -> list[Event]:
        text = self.text
        done = self._about("done", **{self.text_field: text})
        return [done, self._about_part("done", text), *super().finish(status)]

    def _about(self, what: str, **more: Any) -> Event:
        return super()._about(what, content_index=0, **more)

    def _about_part(self, what: str, text: str) -> Event:
        where = {"item_id": self.id, "output_index": self.index, "content_index": 0}
        return {"type": f"response.content_part.{what}", **where, "part": self._part(text)}

    def _content(self, status: str) -> list[dict[str, Any]]:
        return [] if status == "in_progress" else [self._part(self.text)]

    def _part(self, text: str) -> dict[str, Any]:
        return {"type": self.told_as.removeprefix("response."), self.text_field: text}


class ReasoningItem(_TextItem):
    prefix = "rs"
    told_as = "response.reasoning_text"

    def item(self, status: str) -> dict[str, Any]:
        content = self._content(status)
        return {"id": self.id, "type": "reasoning", "status": status, "summary": [], "content": content}


class _MessageItem(_TextItem):
    prefix = "msg"

    def item(self, status: str) -> dict[str, Any]:
        content = self._content(status)
        return {"id": self.id, "type": "message", "status": status, "role": "assistant", "content": content}


class RefusalItem(_MessageItem):
    told_as = "response.refusal"
    text_field = "refusal"


class TextItem(_MessageItem):
    """The answer. Log probabilities are not told here; OpenAI's events have the field."""

    told_as = "response.output_text"

    def _about(self, what: str, **more: Any) -> Event:
        return super()._about(what, **more, logprobs=[])

    def _part(self, text: str) -> dict[str, Any]:
        return {**super()._part(text), "annotations": [], "logprobs": []}
