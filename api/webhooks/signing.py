"""Signatures as the Standard Webhooks specification has them (version 1.0.0, symmetric)."""

import base64
import binascii
import hashlib
import hmac

PREFIX = "whsec_"
_KEY_BYTES = range(24, 65)


class Signer:
    """Signs with every one of its secrets, so that receivers can change theirs at any time during a rotation."""

    def __init__(self, secrets: str) -> None:
        """`secrets`: `whsec_<base64 of 24 to 64 bytes>`, comma separated. Raises ValueError, without the secret."""
        self._keys = [_key(secret.strip()) for secret in secrets.split(",") if secret.strip()]

    def __bool__(self) -> bool:
        return bool(self._keys)

    def headers(self, event_id: str, timestamp: int, body: bytes) -> dict[str, str]:
        """`webhook-id`, `webhook-timestamp` (unix seconds of this try) and `webhook-signature`."""
        signed = b".".join((event_id.encode(), str(timestamp).encode(), body))
        signatures = [base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode() for key in self._keys]
        return {
            "webhook-id": event_id,
            "webhook-timestamp": str(timestamp),
            "webhook-signature": " ".join(f"v1,{signature}" for signature in signatures),
        }


def _key(secret: str) -> bytes:
    try:
        key = base64.b64decode(secret.removeprefix(PREFIX), validate=True)
    except binascii.Error:
        key = b""
    if not secret.startswith(PREFIX) or len(key) not in _KEY_BYTES:
        raise ValueError("TAILRACE_WEBHOOK_SECRETS: a secret is 'whsec_' and the base64 of 24 to 64 random bytes")
    return key
