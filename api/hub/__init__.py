"""One multiplexed XREAD per pod feeds every local reader of every stream.

A *topic* is one stream that somebody here reads: the newest entries, decoded once, in a small ring. A *reader* is a
cursor, not a queue: it takes from the ring what comes after its cursor, and when it has fallen out of the ring, it
catches up from Redis. So a reader that does not read costs nothing, and many readers of one stream cost one key.

Topics are spread over *shards* of up to 256 keys with one connection each.
"""

from api.hub.hub import Hub
from api.hub.reader import HubClosing, Reader, StreamOver

__all__ = ["Hub", "HubClosing", "Reader", "StreamOver"]
