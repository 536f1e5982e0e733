"""Pictures by URL over real sockets: the good ones arrive, and nothing leads to an address that is not public.

Loopback is the forbidden network here, as it is in earnest; only 127.0.0.2 is let through, explicitly.
"""

from __future__ import annotations

import asyncio
import datetime
import resource
import ssl
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from ipaddress import ip_network
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from support.picture_host import CAT, GOOD, PictureHost, picture_host
from support.scripted_engine import ScriptedEngine, loader
from support.waiting import wait_until
from visionchat_serve.config import Settings
from visionchat_serve.errors import (
    ImageDownloadFailed,
    ImageDownloadTimedOut,
    ImageError,
    ImageTooLarge,
    ImageTypeRefused,
    ImageUrlRefused,
    Overloaded,
)
from visionchat_serve.image_address import read_address
from visionchat_serve.image_download import MAX_REDIRECTS, ImageDownloads
from visionchat_serve.memory_broker import MemoryBroker
from visionchat_serve.replica import Replica
from visionchat_serve.request_body import Room
from visionchat_serve.routes import create_app

NAMES = {
    "pictures.test": [GOOD],
    "other.test": [GOOD],
    "inside.test": ["127.0.0.1"],
    "inside6.test": ["::1"],
    "mixed.test": [GOOD, "127.0.0.1"],
    "mapped.test": ["::ffff:127.0.0.1"],
    "nat64.test": ["64:ff9b::7f00:1"],
    "metadata.google.internal": ["169.254.169.254"],
    "cgnat.test": ["100.100.100.200"],
    "agent.test": ["168.63.129.16"],
    "scoped.test": ["fe80::1%lo"],
    "nowhere.test": [],
}


class Names:
    """A resolver that is asked in place of the system's; `asked` is every question."""

    def __init__(self, names: dict[str, list[str]]) -> None:
        self.names = names
        self.asked: list[str] = []

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        self.asked.append(host)
        if host not in self.names:
            found = await asyncio.get_running_loop().getaddrinfo(host, port, type=1)  # literals, localhost
            return [str(entry[4][0]) for entry in found]
        return self.names[host]


@pytest.fixture
async def host() -> AsyncIterator[PictureHost]:
    async with picture_host() as host:
        yield host


def downloads(host: PictureHost, *hosts: str, names: Names | None = None, **limits: Any) -> ImageDownloads:
    """Lets `hosts` (with the host's port) and their names through, to 127.0.0.2 alone."""
    return ImageDownloads(
        {f"{name}:{host.port}" for name in (*hosts, "pictures.test")},
        max_bytes=limits.get("max_bytes", 100_000),
        total_bytes=limits.get("total_bytes", 1_000_000),
        deadline=timedelta(seconds=limits.get("seconds", 5)),
        resolve=names or Names(NAMES),
        networks=[ip_network(f"{GOOD}/32")],
    )


async def get(downloads: ImageDownloads, url: str) -> bytes:
    return (await downloads.fetch({"here": url}))[url]


# --- what must not come through ---

# `{p}` is the host's port, so that whoever gets to loopback by any spelling is answered there, and seen.
VECTORS = [
    # every spelling of 127.0.0.1 that some parser or resolver takes
    "http://127.0.0.1:{p}/",
    "http://127.1:{p}/",
    "http://127.0.1:{p}/",
    "http://2130706433:{p}/",
    "http://0x7f000001:{p}/",
    "http://0x7F.0.0.1:{p}/",
    "http://0x7f.1:{p}/",
    "http://0177.0.0.1:{p}/",
    "http://017700000001:{p}/",
    "http://00127.0.0.1:{p}/",
    "http://127.000.000.001:{p}/",
    "http://127.0.0.1.:{p}/",
    "http://127.255.255.254:{p}/",
    "http://0:{p}/",
    "http://0x0:{p}/",
    "http://0.0.0.0:{p}/",
    "http://127。0。0。1:{p}/",
    "http://１２７.0.0.1:{p}/",
    "http://①②⑦.0.0.①:{p}/",
    "http://127%2e0%2e0%2e1:{p}/",
    "http://127.0.0.1%00.pictures.test:{p}/",
    # IPv6 and what hides IPv4 in it
    "http://[::1]:{p}/",
    "http://[0:0:0:0:0:0:0:1]:{p}/",
    "http://[::]:{p}/",
    "http://[::ffff:127.0.0.1]:{p}/",
    "http://[::FFFF:7F00:1]:{p}/",
    "http://[::127.0.0.1]:{p}/",
    "http://[64:ff9b::7f00:1]:{p}/",
    "http://[64:ff9b:1::7f00:1]:{p}/",
    "http://[2002:7f00:1::]:{p}/",
    "http://[2001:0:7f00:1::1]:{p}/",
    "http://[fe80::1%lo]:{p}/",
    "http://[fe80::1%25lo]:{p}/",
    "http://[fd00:ec2::254]:{p}/",
    "http://[ff02::1]:{p}/",
    "http://::1:{p}/",
    "http://[::1:{p}/",
    # names
    "http://localhost:{p}/",
    "http://LOCALHOST:{p}/",
    "http://localhost.:{p}/",
    "http://loc\u00adalhost:{p}/",
    "http://ⓛocalhost:{p}/",
    "http://inside.test:{p}/",
    "http://inside6.test:{p}/",
    "http://mixed.test:{p}/",
    "http://mapped.test:{p}/",
    "http://nat64.test:{p}/",
    "http://scoped.test:{p}/",
    "http://cgnat.test:{p}/",
    "http://agent.test:{p}/",
    "http://metadata.google.internal:{p}/computeMetadata/v1/",
    "http://169.254.169.254/latest/meta-data/",
    # user names, backslashes, fragments: who is the host?
    "http://pictures.test@127.0.0.1:{p}/",
    "http://pictures.test:{p}@127.0.0.1:{p}/",
    "http://a:b@localhost:{p}/",
    "http://127.0.0.1:{p}\\@pictures.test:{p}/",
    "http://127.0.0.1:{p}\\.pictures.test:{p}/",
    "http:\\\\127.0.0.1:{p}/",
    "http:127.0.0.1:{p}/",
    "http:///127.0.0.1:{p}/",
    "http://127.0.0.1:{p}:80/",
    "http://127.0.0.1\t:{p}/",
    "http://127.0.0.1:{p}/\r\nHost: pictures.test",
    " http://127.0.0.1:{p}/",
    # ports and schemes
    "http://pictures.test:22/",
    "http://pictures.test:0/",
    "http://pictures.test:65536/",
    "http://pictures.test:+{p}/",
    "http://pictures.test:８０/",
    "https://127.0.0.1:{p}/",
    "ftp://127.0.0.1:{p}/",
    "file:///etc/passwd",
    "gopher://127.0.0.1:{p}/_GET",
    "//127.0.0.1:{p}/",
]


def allowed_by_name(url: str, port: int) -> list[str]:
    """The host as the URL writes it, so that the list of hosts is not what refuses it."""
    try:
        return [read_address(url).authority.removesuffix(f":{port}")]
    except ImageUrlRefused:
        return []


@pytest.mark.parametrize("vector", VECTORS)
async def test_no_spelling_leads_inside(host: PictureHost, vector: str) -> None:
    url = vector.replace("{p}", str(host.port))
    allowed = [] if ":22/" in vector else allowed_by_name(url, host.port)
    with pytest.raises(ImageUrlRefused) as caught:
        await get(downloads(host, *allowed), url)
    assert host.requests == []
    assert (caught.value.status, caught.value.param) == (400, "here")


# What a header can hold; other alphabets arrive as their bytes.
REDIRECTS = [vector for vector in [*VECTORS[:52:4], *VECTORS[52:]] if "\n" not in vector]


@pytest.mark.parametrize("vector", REDIRECTS)
async def test_no_redirect_leads_inside(host: PictureHost, vector: str) -> None:
    target = vector.replace("{p}", str(host.port))
    allowed = [] if ":22/" in vector else allowed_by_name(target, host.port)
    url = f"http://pictures.test:{host.port}/redirect?to={quote(target, safe='')}"
    with pytest.raises(ImageUrlRefused):
        await get(downloads(host, *allowed), url)
    assert host.holes == []
    assert len(host.requests) == 1


async def test_a_host_that_is_not_on_the_list_is_not_even_looked_up(host: PictureHost) -> None:
    names = Names(NAMES)
    with pytest.raises(ImageUrlRefused, match=r"may not be fetched from other\.test"):
        await get(downloads(host, names=names), f"http://other.test:{host.port}/")
    with pytest.raises(ImageUrlRefused, match=r"may not be fetched from other\.test"):
        await get(downloads(host), f"http://pictures.test:{host.port}/redirect?to=http://other.test:{host.port}/")
    assert names.asked == []
    assert len(host.requests) == 1


async def test_a_name_that_changes_its_address_gains_nothing(host: PictureHost) -> None:
    """DNS rebinding: the answer that was checked is the one that is connected to; a redirect asks and checks again."""

    class Rebinding(Names):
        async def __call__(self, name: str, port: int) -> Sequence[str]:
            self.asked.append(name)
            return [GOOD] if len(self.asked) == 1 else ["127.0.0.1"]

    names = Rebinding({})
    assert await get(downloads(host, names=names), f"http://pictures.test:{host.port}/cat.png") == CAT
    assert names.asked == ["pictures.test"]
    with pytest.raises(ImageUrlRefused):
        await get(downloads(host, names=Rebinding({})), f"http://pictures.test:{host.port}/redirect?to=/cat.png")
    assert host.holes == []


# --- what must come through ---


async def test_a_picture_arrives_under_its_hosts_name(host: PictureHost) -> None:
    url = f"http://Pictures.test:{host.port}/a%20cat.png?size=1&x=%2F#top"
    assert await get(downloads(host), url) == CAT
    (request,) = host.requests
    assert request.target == "/a%20cat.png?size=1&x=%2F"
    assert request.headers["host"] == f"pictures.test:{host.port}"
    assert request.headers["accept-encoding"] == "identity"


@pytest.mark.parametrize("to", ["/cat.png", "cat.png?x=1", "//other.test:{p}/cat.png", "http://other.test:{p}/cat.png"])
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_redirects_between_allowed_hosts(host: PictureHost, to: str, status: int) -> None:
    target = quote(to.replace("{p}", str(host.port)), safe="")
    url = f"http://pictures.test:{host.port}/redirect?status={status}&to={target}"
    assert await get(downloads(host, "other.test"), url) == CAT
    assert host.requests[-1].headers["host"] == f"{'other' if 'other' in to else 'pictures'}.test:{host.port}"


async def test_a_chain_of_redirects_ends(host: PictureHost) -> None:
    base = f"http://pictures.test:{host.port}/chain?left="
    assert await get(downloads(host), base + str(MAX_REDIRECTS - 1)) == CAT
    with pytest.raises(ImageDownloadFailed, match="more than 3 times"):
        await get(downloads(host), base + str(MAX_REDIRECTS))
    assert len(host.requests) == 2 * (MAX_REDIRECTS + 1)


async def test_an_address_that_does_not_answer_is_followed_by_the_next(host: PictureHost) -> None:
    nobody = "127.0.0.3"  # nothing listens there
    one = ImageDownloads(
        {f"two.test:{host.port}"},
        100_000,
        100_000,
        timedelta(seconds=5),
        Names({"two.test": [nobody, GOOD]}),
        [ip_network("127.0.0.2/31")],
    )
    assert await get(one, f"http://two.test:{host.port}/") == CAT
    one._resolve = Names({"two.test": [nobody]})
    with pytest.raises(ImageDownloadFailed, match="cannot be connected to"):
        await get(one, f"http://two.test:{host.port}/")


async def test_no_cookie_and_no_key_travels(host: PictureHost) -> None:
    one = downloads(host)
    for _ in range(2):
        await get(one, f"http://pictures.test:{host.port}/?cookie=a%3Db")
    assert not {"cookie", "authorization", "referer"} & {name for r in host.requests for name in r.headers}


async def test_no_proxy_is_asked(host: PictureHost, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would look the name up again, and go where it leads."""
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{host.port}")
    assert await get(downloads(host), f"http://pictures.test:{host.port}/") == CAT
    assert host.holes == []


# --- limits ---


async def test_a_picture_that_is_too_large_is_refused_from_its_header_or_while_it_comes(host: PictureHost) -> None:
    for path in ("?length=100001", "endless"):
        with pytest.raises(ImageTooLarge):
            await get(downloads(host), f"http://pictures.test:{host.port}/{path}")
    await asyncio.wait_for(host.gone.wait(), 5)


async def test_pictures_of_one_request_have_a_limit_together(host: PictureHost) -> None:
    urls = {f"picture {n}": f"http://pictures.test:{host.port}/{n}" for n in range(5)}
    assert len(await downloads(host, total_bytes=5 * len(CAT)).fetch(urls)) == 5
    with pytest.raises(ImageTooLarge, match="together"):
        await downloads(host, total_bytes=5 * len(CAT) - 1).fetch(urls)


async def test_fetched_pictures_take_of_the_room_of_all_requests(host: PictureHost) -> None:
    urls = {f"picture {n}": f"http://pictures.test:{host.port}/{n}" for n in range(3)}
    room = Room(5 * len(CAT))
    with room.share() as share:
        await downloads(host).fetch(urls, share.take)
        assert room.held == 3 * len(CAT)
        with room.share() as other, pytest.raises(Overloaded):
            await downloads(host).fetch(urls, other.take)
        assert room.held == 3 * len(CAT)
    assert room.held == 0


async def test_an_endless_picture_costs_no_memory(host: PictureHost) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(20):
        with pytest.raises(ImageTooLarge):
            await get(downloads(host, max_bytes=1_000_000), f"http://pictures.test:{host.port}/endless")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 20_000


@pytest.mark.parametrize("path", ["silent", "drip"])
async def test_one_deadline_over_everything(host: PictureHost, path: str) -> None:
    """Bytes that come one by one reset nothing."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    with pytest.raises(ImageDownloadTimedOut, match=r"within 0\.3 s") as caught:
        await get(downloads(host, seconds=0.3), f"http://pictures.test:{host.port}/{path}")
    assert loop.time() - began < 2
    assert caught.value.status == 504
    await asyncio.wait_for(host.gone.wait(), 5)


async def test_a_slow_resolver_is_under_the_deadline_too(host: PictureHost) -> None:
    class Slow(Names):
        async def __call__(self, name: str, port: int) -> Sequence[str]:
            await asyncio.Event().wait()
            return []

    with pytest.raises(ImageDownloadTimedOut):
        await get(downloads(host, names=Slow({}), seconds=0.2), f"http://pictures.test:{host.port}/")


@pytest.mark.parametrize(
    ("path", "error", "says"),
    [
        ("html?type=text/html", ImageTypeRefused, "text/html"),
        ("x?type=image/svg%2Bxml", ImageTypeRefused, "svg"),
        ("x?encoding=gzip", ImageTypeRefused, "compressed"),
        ("x?status=404", ImageDownloadFailed, "answered 404"),
        ("x?status=500", ImageDownloadFailed, "answered 500"),
        ("x?status=304", ImageDownloadFailed, "answered 304"),
        ("x?length=9999", ImageDownloadFailed, "broke the download off"),
        ("heads", ImageDownloadFailed, "broke the download off"),
    ],
)
async def test_an_answer_that_is_no_picture(host: PictureHost, path: str, error: type[ImageError], says: str) -> None:
    with pytest.raises(error, match=says):
        await get(downloads(host), f"http://pictures.test:{host.port}/{path}")


@pytest.mark.parametrize("kind", ["none", "application/octet-stream", "image/webp; charset=x"])
async def test_a_type_that_says_little_or_the_wrong_picture_is_no_fault_of_the_callers(
    host: PictureHost, kind: str
) -> None:
    assert await get(downloads(host), f"http://pictures.test:{host.port}/?type={quote(kind)}") == CAT


async def test_a_name_without_address(host: PictureHost) -> None:
    async def fails(name: str, port: int) -> Sequence[str]:
        raise OSError("no such name")

    for names in (Names(NAMES), fails):
        one = downloads(host, "nowhere.test", names=names)  # type: ignore[arg-type]
        with pytest.raises(ImageDownloadFailed, match=r"nowhere\.test"):
            await get(one, f"http://nowhere.test:{host.port}/")


# --- TLS ---


def certificate(folder: Path, name: str) -> Path:
    """A self-signed certificate for `name`, with its key, in one file."""
    key = ec.generate_private_key(ec.SECP256R1())
    who = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(who)
        .issuer_name(who)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    private = serialization.PrivateFormat.PKCS8
    text = key.private_bytes(serialization.Encoding.PEM, private, serialization.NoEncryption())
    file = folder / f"{name}.pem"
    file.write_bytes(text + made.public_bytes(serialization.Encoding.PEM))
    return file


async def test_tls_speaks_of_the_name_and_checks_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = certificate(tmp_path, "pictures.test")
    monkeypatch.setenv("SSL_CERT_FILE", str(file))
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(file)
    named: list[str | None] = []
    tls.sni_callback = lambda _, name, __: named.append(name)
    async with picture_host(tls) as host:
        assert await get(downloads(host), f"https://pictures.test:{host.port}/") == CAT
        assert named == ["pictures.test"]
        with pytest.raises(ImageDownloadFailed, match="certificate is not valid"):
            await get(downloads(host, "other.test"), f"https://other.test:{host.port}/")
        plain = quote(f"http://pictures.test:{host.port}/", safe="")
        with pytest.raises(ImageUrlRefused, match="from https to http"):
            await get(downloads(host), f"https://pictures.test:{host.port}/redirect?to={plain}")
    monkeypatch.delenv("SSL_CERT_FILE")
    async with picture_host(tls) as host:
        with pytest.raises(ImageDownloadFailed, match="certificate is not valid"):
            await get(downloads(host), f"https://pictures.test:{host.port}/")


# --- through the API ---


class House:
    """A gateway that may fetch from pictures.test, and the engine behind it."""

    engine: ScriptedEngine
    http: httpx.AsyncClient

    async def ask(self, *urls: str, **more: Any) -> httpx.Response:
        content: list[dict[str, Any]] = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
        messages = [{"role": "user", "content": [*content, {"type": "text", "text": "what is it"}]}]
        body = {"model": "visionchat-tiny", "messages": messages, **more}
        return await self.http.post("/v1/chat/completions", json=body)


@pytest.fixture
async def house(host: PictureHost) -> AsyncIterator[House]:
    house, broker = House(), MemoryBroker()
    house.engine = ScriptedEngine()
    app = create_app(Settings(max_images=3), lambda: broker, downloads(host, seconds=0.5))
    replica = Replica(loader(house.engine), broker, "r1", (0,), claim_wait=timedelta(milliseconds=20))
    async with app.router.lifespan_context(app):
        await replica.start()
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as house.http:
            yield house
        await replica.drain(timedelta(seconds=5))


async def test_a_chat_about_a_picture_by_url(host: PictureHost, house: House) -> None:
    url = f"http://pictures.test:{host.port}/cat.png"
    for stream in (False, True):
        assert (await house.ask(url, url, stream=stream)).status_code == 200
    assert len(host.requests) == 2, "the same picture twice in a request is fetched once"
    assert [len(request.images) for request in house.engine.seen] == [2, 2]
    assert house.engine.seen[0].images[0] == house.engine.seen[0].images[1]


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("cat.png?status=404", 400, "image_download_failed"),
        ("redirect?to=http://127.0.0.1/", 400, "image_url_refused"),
        ("endless", 413, "image_too_large"),
        ("html?type=image/png", 415, "unsupported_image_type"),
        ("html?type=text/html", 415, "unsupported_image_type"),
        ("broken.png", 422, "image_unreadable"),
        ("drip", 504, "image_download_timeout"),
    ],
)
async def test_errors_name_the_place_in_openais_form(
    host: PictureHost, house: House, path: str, status: int, code: str
) -> None:
    base = f"http://pictures.test:{host.port}/"
    response = await house.ask(base + "cat.png", base + path)
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (status, code)
    assert error["param"] == "messages.0.content.1.image_url"
    assert error["message"].startswith("messages.0.content.1.image_url: ")
    assert house.engine.seen == []


async def test_nothing_is_fetched_for_a_request_that_is_refused_anyway(host: PictureHost, house: House) -> None:
    url = f"http://pictures.test:{host.port}/cat.png"
    assert (await house.ask(*[url] * 4)).status_code == 400
    assert (await house.ask(url, bananas=1)).status_code == 400
    assert (await house.ask(url, model="other")).status_code == 404
    assert host.requests == []


async def test_a_client_that_leaves_ends_the_download(host: PictureHost, house: House) -> None:
    asked = asyncio.create_task(house.ask(f"http://pictures.test:{host.port}/silent"))
    await wait_until(lambda: bool(host.requests), "the download began")
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    await asyncio.wait_for(host.gone.wait(), 5)


async def test_without_a_list_of_hosts_image_urls_are_refused(host: PictureHost) -> None:
    app = create_app(Settings(), MemoryBroker)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway") as http,
    ):
        house = House()
        house.http = http
        error = (await house.ask(f"http://pictures.test:{host.port}/cat.png")).json()["error"]
    assert (error["code"], error["param"]) == ("invalid_image", "messages.0.content.0.image_url")
    assert "not allowed by this server" in error["message"]
    assert host.requests == []
