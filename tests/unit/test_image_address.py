"""What is understood of a picture's URL, and which addresses are public."""

from __future__ import annotations

from ipaddress import ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from visionchat_serve.config import Settings
from visionchat_serve.errors import ImageUrlRefused
from visionchat_serve.image_address import ImageAddress, is_http, read_address
from visionchat_serve.public_address import is_public


@pytest.mark.parametrize(
    ("url", "scheme", "host", "port", "target", "authority"),
    [
        ("https://example.org/cat.png", "https", "example.org", 443, "/cat.png", "example.org"),
        ("HTTP://Example.ORG", "http", "example.org", 80, "/", "example.org"),
        ("https://example.org:443/a?b=c%20d#e", "https", "example.org", 443, "/a?b=c%20d", "example.org"),
        ("http://example.org:8080?q=@/", "http", "example.org", 8080, "/?q=@/", "example.org:8080"),
        ("http://192.0.2.1/x", "http", "192.0.2.1", 80, "/x", "192.0.2.1"),
        ("http://[2001:DB8:0::1]:81/", "http", "2001:db8::1", 81, "/", "[2001:db8::1]:81"),
        ("http://xn--bcher-kva.example/", "http", "xn--bcher-kva.example", 80, "/", "xn--bcher-kva.example"),
    ],
)
def test_a_plain_url(url: str, scheme: str, host: str, port: int, target: str, authority: str) -> None:
    address = read_address(url)
    assert address == ImageAddress(scheme, host, port, target)
    assert address.authority == authority
    assert read_address(address.url) == address


@given(st.text(max_size=40).map("http://".__add__) | st.from_regex(r"https?://[^/]{0,30}/.{0,10}"))
def test_any_text_is_refused_or_read_to_something_plain(url: str) -> None:
    try:
        address = read_address(url)
    except ImageUrlRefused:
        return
    assert address.host.isascii()
    assert not set(address.host) & set("@/\\?#% ")
    assert read_address(address.url) == address


@pytest.mark.parametrize(
    ("url", "hosts", "allowed"),
    [
        ("https://a.example.org/", {"a.example.org"}, True),
        ("http://a.example.org:80/", {"a.example.org"}, True),
        ("https://a.example.org/", {"a.example.org:443"}, True),
        ("https://a.example.org:8443/", {"a.example.org"}, False),
        ("https://a.example.org:8443/", {"a.example.org:8443"}, True),
        ("https://a.example.org/", {"*.example.org"}, True),
        ("https://a.b.example.org/", {"*.example.org"}, True),
        ("https://a.example.org:8443/", {"*.example.org"}, False),
        ("https://a.example.org:8443/", {"*.example.org:8443"}, True),
        ("https://example.org/", {"*.example.org"}, False),
        ("https://evilexample.org/", {"*.example.org", "example.org"}, False),
        ("https://example.org.evil.net/", {"example.org"}, False),
        ("https://anything.net/", {"*"}, True),
        ("https://anything.net:22/", {"*"}, False),
        ("https://anything.net/", set(), False),
    ],
)
def test_the_list_of_hosts(url: str, hosts: set[str], allowed: bool) -> None:
    assert read_address(url).is_among(frozenset(hosts)) is allowed
    Settings(image_url_hosts=tuple(hosts))


@pytest.mark.parametrize("entry", ["https://example.org", "Example.org", "a b", "", "*.*", "example.org/path", "*:80"])
def test_a_wrong_entry_in_the_list_is_said_at_the_start(entry: str) -> None:
    with pytest.raises(ValueError, match="image_url_hosts"):
        Settings(image_url_hosts=(entry,))


@pytest.mark.parametrize("url", ["http:x", " https://x", "HTTPS:", "http://"])
def test_what_claims_to_be_http_is_never_taken_for_anything_else(url: str) -> None:
    assert is_http(url)


def test_data_urls_are_not_http() -> None:
    assert not any(is_http(url) for url in ("data:image/png;base64,", "httpx:", "", "ftp://x"))


@pytest.mark.parametrize("address", ["1.1.1.1", "8.8.8.8", "172.32.0.1", "100.128.0.1", "2606:4700::1111", "2a00::1"])
def test_public_addresses(address: str) -> None:
    assert is_public(address)
    if "." in address:
        assert is_public(f"::ffff:{address}")
        assert is_public(f"64:ff9b::{address}"), "a network without IPv4 reaches the internet so"


PRIVATE = [
    "0.0.0.0",
    "0.1.2.3",
    "10.0.0.1",
    "10.255.255.255",
    "100.64.0.1",
    "100.100.100.200",
    "127.0.0.1",
    "127.255.255.254",
    "168.63.129.16",
    "169.254.0.1",
    "169.254.169.254",
    "172.16.0.1",
    "172.31.255.255",
    "192.0.0.192",
    "192.0.2.1",
    "192.88.99.1",
    "192.168.1.1",
    "198.18.0.1",
    "198.51.100.7",
    "203.0.113.9",
    "224.0.0.1",
    "239.255.255.250",
    "240.0.0.1",
    "255.255.255.255",
]


@pytest.mark.parametrize("address", PRIVATE)
def test_addresses_that_are_not_public_in_every_form(address: str) -> None:
    low = int(ip_address(address))
    six_to_four = f"2002:{low >> 16:x}:{low & 0xFFFF:x}::1"
    for spelled in (address, f"::ffff:{address}", f"::{address}", f"64:ff9b::{address}", six_to_four):
        assert not is_public(spelled), spelled


@pytest.mark.parametrize(
    "address",
    [
        "::1",
        "::",
        "fe80::1",
        "fe80::1%lo",
        "febf::1",
        "fec0::1",
        "fc00::1",
        "fd00:ec2::254",
        "ff02::1",
        "ff05::2",
        "2001:db8::1",
        "2001:0:7f00:1::1",
        "2001:20::1",
        "3fff::1",
        "5f00::1",
        "64:ff9b:1::7f00:1",
        "100::1",
        "4000::1",
        "::ffff:0:7f00:1",
    ],
)
def test_other_addresses_that_are_not_public(address: str) -> None:
    assert not is_public(address)
