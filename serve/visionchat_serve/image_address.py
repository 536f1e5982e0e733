"""A picture's http(s) URL taken apart, so that what is checked is what is connected to.

URL parsers disagree about what is unusual (backslashes, user names, numbers as hosts, letters of other alphabets), and
an attacker lives in the difference. So nothing unusual is understood here: it is refused, with what to write instead.
Pure; `image_download` reads the URL and every redirect through here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import AddressValueError, IPv4Address, IPv6Address
from urllib.parse import urljoin

from visionchat_serve.errors import ImageUrlRefused

MAX_LENGTH = 4096
_PORTS = {"http": 80, "https": 443}
_PLAIN = re.compile(r"[!-\[\]-~]+")  # visible ASCII without the backslash
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_URL = re.compile(r"(?P<scheme>https?)://(?P<authority>[^/?#]*)(?P<target>[^#]*)", re.IGNORECASE)
_AUTHORITY = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]{2,45}\]|[A-Za-z0-9._-]{1,253})(:(?P<port>[0-9]{1,5}))?")
_LABEL = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?")
_NUMBER = re.compile(r"0x[0-9a-f]*|[0-9]+")  # what some resolvers read as (a part of) an IPv4 address


@dataclass(frozen=True, slots=True)
class ImageAddress:
    """`host` is a lower-case name or an IP address without brackets, `target` path and query as they were written."""

    scheme: str
    host: str
    port: int
    target: str

    @property
    def authority(self) -> str:
        """As it stands in a `Host` header."""
        return self._bracketed if self._is_usual_port else f"{self._bracketed}:{self.port}"

    @property
    def url(self) -> str:
        return f"{self.scheme}://{self.authority}{self.target}"

    def is_among(self, hosts: frozenset[str]) -> bool:
        """Entries are `name`, `name:port`, `*.name` (all below it) or `*`; without a port only the usual one."""
        exact = {self.authority, f"{self._bracketed}:{self.port}"}
        below = {f"*.{above}" for name in exact for above in _above(name)}
        every = {"*"} if self._is_usual_port else set()
        return not hosts.isdisjoint(exact | below | every)

    @property
    def _is_usual_port(self) -> bool:
        return self.port == _PORTS[self.scheme]

    @property
    def _bracketed(self) -> str:
        return f"[{self.host}]" if ":" in self.host else self.host


def _above(name: str) -> list[str]:
    """`b.c` and `c` for `a.b.c`."""
    labels = name.split(".")
    return [".".join(labels[i:]) for i in range(1, len(labels))]


def is_http(url: str) -> bool:
    """Whether it is for `read_address` at all; everything else is for `data_url`."""
    return url.lstrip()[:6].lower().startswith(("http:", "https:"))


def read_address(url: str) -> ImageAddress:
    """Raises `ImageUrlRefused`."""
    if len(url) > MAX_LENGTH:
        raise ImageUrlRefused(f"the image URL has over {MAX_LENGTH} characters; send the picture as a data: URL")
    if not _PLAIN.fullmatch(url):
        raise ImageUrlRefused(
            "the image URL holds a space, a backslash or a character outside ASCII; write those of a path "
            "percent-encoded and those of a host name in punycode"
        )
    parts = _URL.match(url)
    if parts is None:
        raise ImageUrlRefused("the image URL must begin with https:// or http://")
    if "@" in parts["authority"]:
        raise ImageUrlRefused("the image URL must not hold a user name or password")
    authority = _AUTHORITY.fullmatch(parts["authority"])
    if authority is None:
        raise ImageUrlRefused("the image URL's host must be a plain name or address, with or without a port")
    scheme = parts["scheme"].lower()
    port = int(authority["port"] or _PORTS[scheme])
    if not 1 <= port <= 65535:
        raise ImageUrlRefused("the image URL's port must be between 1 and 65535")
    target = parts["target"]
    return ImageAddress(scheme, _host(authority["host"].lower()), port, target if target[:1] == "/" else f"/{target}")


def redirected(address: ImageAddress, location: str) -> ImageAddress:
    """Where a `Location` header leads; raises `ImageUrlRefused`."""
    if _SCHEME.match(location):
        following = read_address(location)
    else:
        try:
            following = read_address(urljoin(address.url, location))
        except ValueError as error:
            raise ImageUrlRefused("the image URL is redirected to something that is no URL") from error
    if (address.scheme, following.scheme) == ("https", "http"):
        raise ImageUrlRefused("the image URL is redirected from https to http")
    return following


def _host(written: str) -> str:
    try:
        if written.startswith("["):
            return str(IPv6Address(written[1:-1]))
        *_, last = labels = written.split(".")
        if _NUMBER.fullmatch(last):
            return str(IPv4Address(written))
    except AddressValueError:
        raise ImageUrlRefused("the image URL's host is a number, but no plain address as 192.0.2.1 or [::1]") from None
    if not all(_LABEL.fullmatch(label) for label in labels):
        raise ImageUrlRefused("the image URL's host is not a plain name; write it without a dot at its end")
    return written
