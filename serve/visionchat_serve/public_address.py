"""Whether an IP address belongs to the public internet, in whatever form it hides.

A picture's URL must not lead this server to its own machine, its network or its cloud's metadata service. What is
not known to be public is not. Pure; `image_download` asks for every address before it connects.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

Address = IPv4Address | IPv6Address

_NOT_PUBLIC_V4 = tuple(
    IPv4Network(network)
    for network in (
        "0.0.0.0/8",  # this host
        "10.0.0.0/8",
        "100.64.0.0/10",  # carriers' NAT, and some clouds' metadata
        "127.0.0.0/8",
        "168.63.129.16/32",  # a cloud's agent service, on every virtual machine there
        "169.254.0.0/16",  # link-local, where most clouds keep their metadata
        "172.16.0.0/12",
        "192.0.0.0/24",  # protocol assignments
        "192.0.2.0/24",  # documentation
        "192.88.99.0/24",  # 6to4 relays
        "192.168.0.0/16",
        "198.18.0.0/15",  # benchmarks
        "198.51.100.0/24",
        "203.0.113.0/24",
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved, broadcast
    )
)
_GLOBAL_V6 = IPv6Network("2000::/3")
_NOT_PUBLIC_V6 = tuple(
    IPv6Network(network)
    for network in (
        "2001::/23",  # protocol assignments, Teredo, ORCHID
        "2001:db8::/32",  # documentation
        "2002::/16",  # 6to4: an IPv4 address inside, through a relay nobody needs any more
        "3fff::/20",  # documentation
    )
)
_NAT64 = IPv6Network("64:ff9b::/96")


def is_public(address: str) -> bool:
    """`address` in the form that `getaddrinfo` gives; raises ValueError when it is none."""
    return _is_public(ip_address(address))


def _is_public(address: Address) -> bool:
    if isinstance(address, IPv4Address):
        return not any(address in network for network in _NOT_PUBLIC_V4)
    if address.ipv4_mapped is not None:
        return _is_public(address.ipv4_mapped)
    if address in _NAT64:  # how a network without IPv4 reaches it: the address meant is in the last 32 bits
        return _is_public(IPv4Address(address.packed[12:]))
    return address in _GLOBAL_V6 and not any(address in network for network in _NOT_PUBLIC_V6)
