"""Where webhooks may go. A client chooses the URL and the pod calls it, so it must not lead into the pod's own network.

The addresses are checked at the moment of connecting, and the connection is made to the very address that was
checked: a name that resolves to something else a moment later (DNS rebinding) gains nothing.
"""

import asyncio
import ipaddress
import socket
from collections.abc import Iterable
from typing import Any

import httpcore
import httpx

from common.errors import BadRequest

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

PARAM = "tailrace.webhook_url"

_UNICAST_V6 = ipaddress.IPv6Network("2000::/3")
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
# Let through by `is_global`, though no receiver is there: protocol assignments, relays, and what every machine of Azure
# reaches its host's agent by.
_NOT_FOR_HOSTS = [
    ipaddress.ip_network(block)
    for block in ("192.0.0.0/24", "192.88.99.0/24", "192.175.48.0/24", "2002::/16", "168.63.129.16/32")
]


class AddressRefused(Exception):
    """The receiver's host has an address that webhooks may not go to."""


class AddressPolicy:
    """Public unicast addresses, and those in the networks `allowed` (CIDRs, comma separated)."""

    def __init__(self, allowed: str = "") -> None:
        """Raises ValueError for what is not a CIDR."""
        self._allowed: list[Network] = [
            ipaddress.ip_network(cidr.strip()) for cidr in allowed.split(",") if cidr.strip()
        ]

    def permits(self, address: str) -> bool:
        """Raises ValueError when `address` is not one."""
        target = _unwrapped(ipaddress.ip_address(address))
        return _is_public(target) or any(target in network for network in self._allowed)

    def check_url(self, url: str) -> None:
        """What can be said about `url` without asking DNS. Raises BadRequest."""
        try:
            parsed = httpx.URL(url)
        except httpx.InvalidURL as error:
            raise BadRequest(f"webhook_url: {error}.", param=PARAM) from error
        if parsed.scheme not in ("http", "https") or not parsed.host:
            raise BadRequest("webhook_url: an absolute http or https URL is expected.", param=PARAM)
        if parsed.port is not None and not 0 < parsed.port < 65_536:
            raise BadRequest("webhook_url: the port is out of range.", param=PARAM)
        if parsed.userinfo:
            raise BadRequest("webhook_url: credentials do not belong into a URL; check the signature.", param=PARAM)
        if _is_literal(parsed.host) and not self.permits(parsed.host):
            raise BadRequest(f"webhook_url: {parsed.host} is not a public address.", param=PARAM)


class GuardedBackend(httpcore.AsyncNetworkBackend):
    """Connects only where the policy permits. TLS still checks the certificate against the URL's host name."""

    def __init__(self, policy: AddressPolicy) -> None:
        self._policy = policy
        self._plain = httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """Raises AddressRefused when any of the host's addresses is not permitted, OSError when it has none."""
        addresses = await _addresses(host, port)
        for address in addresses:
            if not self._policy.permits(address):
                raise AddressRefused(f"{host} is {address}, where webhooks may not go")
        unreachable: Exception = OSError(f"{host} has no address")
        for address in addresses:
            try:
                return await self._plain.connect_tcp(address, port, timeout, local_address, socket_options)
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                unreachable = error
        raise unreachable


async def _addresses(host: str, port: int) -> list[str]:
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except UnicodeError as error:  # a label that is empty or too long
        raise OSError(f"{host} is not a host name") from error
    return list(dict.fromkeys(str(place[0]) for *_, place in found))


def _unwrapped(address: Address) -> Address:
    """The IPv4 address that an IPv6 one only carries: it is where the packets end."""
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped:
            return address.ipv4_mapped
        if address in _NAT64:
            return ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF)
    return address


def _is_public(address: Address) -> bool:
    if address.version == 6 and address not in _UNICAST_V6:
        return False
    if address.is_multicast or address.is_reserved or any(address in block for block in _NOT_FOR_HOSTS):
        return False
    return address.is_global


def _is_literal(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
