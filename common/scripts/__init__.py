"""The Lua scripts, each loaded from the file of its name; every atomic state change is one of them."""

from importlib.resources import files
from typing import Any

from redis.exceptions import NoScriptError

from common.connections import Client

_FOLDER = files(__name__)
_PRELUDE = _FOLDER.joinpath("prelude.lua").read_bytes()


class Script:
    """One Lua script, run by its hash; the body is sent only when Redis does not know it (first use, restart)."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.body = _PRELUDE + _FOLDER.joinpath(f"{name}.lua").read_bytes()
        self._sha: str | None = None

    async def __call__(self, client: Client, keys: list[str], args: list[Any]) -> Any:
        if self._sha is not None:
            try:
                return await client.evalsha(self._sha, len(keys), *keys, *args)  # type: ignore[misc]
            except NoScriptError:
                pass
        self._sha = await client.script_load(self.body)
        return await client.evalsha(self._sha, len(keys), *keys, *args)  # type: ignore[misc]


submit = Script("submit")
submit_batch = Script("submit_batch")
discard_batch = Script("discard_batch")
cancel_batch = Script("cancel_batch")
claim = Script("claim")
renew = Script("renew")
requeue_expired = Script("requeue_expired")
expire_queued = Script("expire_queued")
release = Script("release")
cancel = Script("cancel")
steer = Script("steer")
finish = Script("finish")
webhook_claim = Script("webhook_claim")
webhook_settle = Script("webhook_settle")
append_attempt = Script("append_attempt")
attach = Script("attach")
detach = Script("detach")
