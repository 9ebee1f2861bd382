"""API keys: who is asking. Keys are kept as SHA-256 only; the name of the key owns the jobs."""

import hashlib
import hmac
from pathlib import Path

from starlette.requests import HTTPConnection

from common.errors import Unauthorized
from common.settings import Settings

ANONYMOUS = "anonymous"
_SUBPROTOCOL = "tailrace-api-key."


class KeyRing:
    """Digest to name. Empty: everybody is ANONYMOUS."""

    def __init__(self, digests: dict[str, str]) -> None:
        self._digests = digests

    @classmethod
    def load(cls, settings: Settings) -> "KeyRing":
        """Raises ValueError for a line that is not `name:sha256hex`, OSError when the file cannot be read."""
        lines = settings.api_keys.split(",")
        if settings.api_keys_file:
            lines += Path(settings.api_keys_file).read_text().splitlines()
        return cls(dict(_parse(line.strip()) for line in lines if line.strip() and not line.strip().startswith("#")))

    def __bool__(self) -> bool:
        return bool(self._digests)

    def owner(self, connection: HTTPConnection) -> str:
        """The name of the key that the connection carries. Raises Unauthorized."""
        if not self._digests:
            return ANONYMOUS
        digest = digest_of(_presented(connection))
        for known, name in self._digests.items():
            if hmac.compare_digest(known, digest):
                return name
        raise Unauthorized("Missing or unknown API key; send it as 'Authorization: Bearer <key>'.")


def digest_of(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


def _presented(connection: HTTPConnection) -> str:
    scheme, _, key = connection.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        return key.strip()
    # A browser cannot set headers on a WebSocket, but it can name subprotocols.
    for offered in connection.headers.get("sec-websocket-protocol", "").split(","):
        if offered.strip().startswith(_SUBPROTOCOL):
            return offered.strip().removeprefix(_SUBPROTOCOL)
    return ""


def _parse(line: str) -> tuple[str, str]:
    name, _, digest = line.rpartition(":")
    if not name or len(digest) != 64 or not all(c in "0123456789abcdef" for c in digest.lower()):
        raise ValueError(f"not 'name:sha256hex': {line!r}")
    return digest.lower(), name
