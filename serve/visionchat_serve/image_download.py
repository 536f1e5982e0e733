"""Pictures named by address, fetched before the queue from hosts that the settings allow.

    read the URL -> host allowed? -> resolve once -> all addresses public? -> connect to that very address -> read

The name is resolved once and the connection goes to the address that was checked (the name is still what TLS and the
`Host` header say), so a name that answers differently the second time gains nothing. Redirects are followed by hand
and go through all of it again. No proxy, no cookie, no compression; one deadline over everything.
Called by the gateway; asynchronous; knows neither the queue nor what the bytes mean.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from ipaddress import IPv4Network, IPv6Network, ip_address

import httpx

from visionchat_serve.config import Settings
from visionchat_serve.data_url import too_large
from visionchat_serve.errors import (
    ImageDownloadFailed,
    ImageDownloadTimedOut,
    ImageError,
    ImageTooLarge,
    ImageTypeRefused,
    ImageUrlRefused,
)
from visionchat_serve.image_address import ImageAddress, read_address, redirected
from visionchat_serve.image_header import ACCEPTED, is_picture_type
from visionchat_serve.public_address import is_public

MAX_REDIRECTS = 3
AT_ONCE = 16  # downloads of one gateway
_REDIRECTS = {301, 302, 303, 307, 308}
_HEADERS = {"Accept": "image/*", "Accept-Encoding": "identity", "User-Agent": "VisionChat", "Connection": "close"}

Take = Callable[[int], None]
Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
Network = IPv4Network | IPv6Network


class ImageDownloads:
    """`hosts` as `ImageAddress.is_among` takes them; `max_bytes` for one picture, `total_bytes` for a request's.

    `resolve` gives a name's addresses; `networks` are allowed although they are not public.
    """

    def __init__(
        self,
        hosts: Collection[str],
        max_bytes: int,
        total_bytes: int,
        deadline: timedelta,
        resolve: Resolve | None = None,
        networks: Collection[Network] = (),
    ) -> None:
        self._hosts = frozenset(hosts)
        self._max_bytes = max_bytes
        self._total_bytes = total_bytes
        self._deadline = deadline
        self._resolvers = ThreadPoolExecutor(4, thread_name_prefix="resolve")  # `getaddrinfo` blocks
        self._resolve = resolve or self._ask_system
        self._networks = tuple(networks)
        self._tls = httpx.create_ssl_context()  # reads the trusted certificates: once, not in every download
        self._places = asyncio.Semaphore(AT_ONCE)

    @classmethod
    def of(cls, settings: Settings) -> ImageDownloads | None:
        """None where no host is allowed: then image URLs are refused like any other that is no data: URL."""
        if not settings.image_url_hosts:
            return None
        deadline = timedelta(seconds=settings.image_url_seconds)
        return cls(settings.image_url_hosts, settings.image_max_bytes, settings.max_body_bytes, deadline)

    async def fetch(self, urls: Mapping[str, str], room: Take = lambda count: None) -> dict[str, bytes]:
        """The bytes of each URL. `urls` says for every place in the request which one stands there; the first error
        ends all downloads and names its place. `room` is told of all bytes that come, and may raise."""
        places = {url: place for place, url in reversed(list(urls.items()))}  # the first place of each
        allowance = _Allowance(self._total_bytes, room)
        try:
            async with asyncio.TaskGroup() as group:
                tasks = {url: group.create_task(self._fetch(url, at, allowance)) for url, at in places.items()}
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from None
        return {url: task.result() for url, task in tasks.items()}

    def close(self) -> None:
        self._resolvers.shutdown(wait=False, cancel_futures=True)

    async def _fetch(self, url: str, place: str, allowance: _Allowance) -> bytes:
        try:
            async with asyncio.timeout(self._deadline.total_seconds()), self._places:
                return await self._follow(url, allowance)
        except TimeoutError:
            seconds = f"{self._deadline.total_seconds():g}"
            message = f"{place}: the picture did not arrive within {seconds} s; send it as a data: URL"
            raise ImageDownloadTimedOut(message, param=place) from None
        except ImageError as error:
            raise type(error)(f"{place}: {error.message}", param=place) from error

    async def _follow(self, url: str, allowance: _Allowance) -> bytes:
        """Through redirects to the picture."""
        address = self._allowed(read_address(url))
        for _ in range(MAX_REDIRECTS + 1):
            got = await self._get(address, allowance)
            if isinstance(got, bytes):
                return got
            address = self._allowed(redirected(address, got.location))
        raise ImageDownloadFailed(f"the image URL is redirected more than {MAX_REDIRECTS} times")

    def _allowed(self, address: ImageAddress) -> ImageAddress:
        if not address.is_among(self._hosts):
            raise ImageUrlRefused(
                f"pictures may not be fetched from {address.authority} by this server; send it as a data: URL"
            )
        return address

    async def _get(self, address: ImageAddress, allowance: _Allowance) -> bytes | _Redirect:
        """Try the checked addresses in their order until one can be connected to."""
        for ip in await self._checked_ips(address):
            url = httpx.URL(scheme=address.scheme, host=ip, port=address.port, raw_path=address.target.encode())
            extensions = {"sni_hostname": address.host, "timeout": {}}
            request = httpx.Request("GET", url, headers={"Host": address.authority} | _HEADERS, extensions=extensions)
            async with httpx.AsyncHTTPTransport(verify=self._tls, trust_env=False) as transport:
                try:
                    response = await transport.handle_async_request(request)
                    return await self._read(response, allowance)
                except httpx.ConnectError:
                    continue
                except (httpx.TransportError, httpx.InvalidURL) as error:
                    raise ImageDownloadFailed(f"{address.host} broke the download off; try again") from error
        raise ImageDownloadFailed(f"{address.authority} cannot be connected to, or its certificate is not valid")

    async def _checked_ips(self, address: ImageAddress) -> Sequence[str]:
        """Every address of the name must be public: one that is not says whose name it is."""
        try:
            ips = await self._resolve(address.host, address.port)
        except (OSError, UnicodeError) as error:
            raise ImageDownloadFailed(f"the host name {address.host} cannot be resolved") from error
        if not ips:
            raise ImageDownloadFailed(f"the host name {address.host} has no address")
        if not all(is_public(ip) or self._is_in_networks(ip) for ip in ips):
            raise ImageUrlRefused(f"{address.host} is not on the public internet; send the picture as a data: URL")
        return ips

    def _is_in_networks(self, ip: str) -> bool:
        return any(ip_address(ip) in network for network in self._networks)

    async def _ask_system(self, host: str, port: int) -> Sequence[str]:
        def ask() -> list[str]:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            return list(dict.fromkeys(str(entry[4][0]) for entry in found))

        return await asyncio.get_running_loop().run_in_executor(self._resolvers, ask)

    async def _read(self, response: httpx.Response, allowance: _Allowance) -> bytes | _Redirect:
        try:
            if response.status_code in _REDIRECTS and "location" in response.headers:
                return _Redirect(response.headers["location"])
            _check_head(response)
            declared = response.headers.get("content-length", "0")
            if declared.isdecimal() and int(declared) > self._max_bytes:
                raise too_large(int(declared), self._max_bytes)
            return await self._body(response, allowance)
        finally:
            await response.aclose()

    async def _body(self, response: httpx.Response, allowance: _Allowance) -> bytes:
        body = bytearray()
        async for part in response.aiter_raw():
            body += part
            if len(body) > self._max_bytes:
                raise too_large(len(body), self._max_bytes)
            allowance.take(len(part))
        return bytes(body)


class _Redirect:
    """Where the picture is said to be."""

    def __init__(self, location: str) -> None:
        self.location = location


class _Allowance:
    """Bytes that the pictures of one request may have together, taken of the room that all requests have."""

    def __init__(self, total: int, room: Take) -> None:
        self._total = self._left = total
        self._room = room

    def take(self, count: int) -> None:
        self._room(count)
        self._left -= count
        if self._left < 0:
            raise ImageTooLarge(f"the pictures of one request may have {self._total / 1e6:.1f} MB together")


def _check_head(response: httpx.Response) -> None:
    if response.status_code != 200:
        raise ImageDownloadFailed(f"the picture's host answered {response.status_code} instead of the picture")
    if response.headers.get("content-encoding", "identity").strip().lower() not in ("", "identity"):
        raise ImageTypeRefused("the picture's host sends it compressed once more, which was not asked for")
    declared = response.headers.get("content-type", "")
    if not is_picture_type(declared):
        raise ImageTypeRefused(f"the image URL leads to {declared[:60]!r}, not to a picture (accepted: {ACCEPTED})")
