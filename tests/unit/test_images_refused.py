"""Every bad picture of which we know: the right status, a message that says what to do, and never a 500."""

from __future__ import annotations

import base64
import io
import json
import struct
import time
import zlib
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import pytest
from PIL import Image

from visionchat_serve.errors import ImageError, ImageTooLarge, ImageTypeRefused, ImageUnreadable
from visionchat_serve.images import ImageLimits, decode_data_url, normalise

KINDS = ["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF"]


def encode(kind: str, size: tuple[int, int] = (64, 64), mode: str = "RGB", **options: Any) -> bytes:
    out = io.BytesIO()
    picture = Image.effect_noise(size, 60).convert(mode)
    picture.save(out, kind, **options)
    return out.getvalue()


def chunk(name: bytes, body: bytes = b"") -> bytes:
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))


def png(width: int, height: int, *chunks: bytes) -> bytes:
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))
    return (
        b"\x89PNG\r\n\x1a\n" + header + b"".join(chunks) + chunk(b"IDAT", zlib.compress(bytes(4096))) + chunk(b"IEND")
    )


def gif(width: int, height: int, before: bytes = b"", canvas: tuple[int, int] | None = None) -> bytes:
    frame = b"," + struct.pack("<HHHHB", 0, 0, width, height, 0) + b"\x02\x02\x44\x01\x00"
    return b"GIF89a" + struct.pack("<HHBBB", *(canvas or (width, height)), 0, 0, 0) + before + frame + b";"


def jpeg(width: int, height: int) -> bytes:
    data = encode("JPEG", mode="L")
    at = data.index(b"\xff\xc0") + 5
    return data[:at] + struct.pack(">HH", height, width) + data[at + 4 :]


def bmp(width: int, height: int) -> bytes:
    data = bytearray(encode("BMP"))
    data[18:26] = struct.pack("<ii", width, height)
    return bytes(data)


def webp(width: int, height: int) -> bytes:
    frame = b"VP8X" + struct.pack("<I", 10) + b"\0\0\0\0" + struct.pack("<I", width - 1)[:3]
    body = b"WEBP" + frame + struct.pack("<I", height - 1)[:3] + encode("WEBP")[12:]
    return b"RIFF" + struct.pack("<I", len(body)) + body


def tiff(*extra: tuple[int, int, int, int], width: int = 64, height: int = 64, tail: bytes = b"") -> bytes:
    """Uncompressed grey; `extra` entries (tag, type, count, value) replace or add to the usual ones."""
    usual = {256: (4, 1, width), 257: (4, 1, height), 258: (3, 1, 8), 259: (3, 1, 1), 262: (3, 1, 1)}
    usual |= {273: (4, 1, 1024), 277: (3, 1, 1), 278: (4, 1, height), 279: (4, 1, width * height)}
    entries = usual | {tag: (kind, count, value) for tag, kind, count, value in extra}
    directory = b"".join(struct.pack("<HHII", tag, *rest) for tag, rest in sorted(entries.items()))
    head = b"II*\0" + struct.pack("<IH", 8, len(entries)) + directory + bytes(4)
    return head.ljust(1024, b"\0") + (tail or bytes(64 * 64))


def box(brand: bytes) -> bytes:
    return b"\0\0\0\x18ftyp" + brand + b"\0\0\0\0" + brand + bytes(64)


Case = tuple[str, Callable[[], bytes], type[ImageError], str]

NOT_A_PICTURE: list[Case] = [
    ("plain text", lambda: b"hello, this is no picture", ImageTypeRefused, "not a picture"),
    ("text that begins with BM", lambda: b"BMW is a maker of cars, not of bitmaps", ImageTypeRefused, "not a picture"),
    ("random bytes", lambda: bytes(range(7, 250)), ImageTypeRefused, "not a picture"),
    ("JSON", lambda: json.dumps({"error": 1}).encode(), ImageTypeRefused, "not a picture"),
    ("HTML", lambda: b"\n<!DOCTYPE html><html>Not found</html>", ImageTypeRefused, "not the page"),
    ("SVG", lambda: b"<?xml version='1.0'?><svg width='9'/>", ImageTypeRefused, "render it"),
    ("PDF", lambda: b"%PDF-1.7\n" + bytes(99), ImageTypeRefused, "PDF document"),
    ("AVIF", lambda: box(b"avif"), ImageTypeRefused, "AVIF"),
    ("HEIC, an iPhone's own format", lambda: box(b"heic"), ImageTypeRefused, "HEIC"),
    ("MP4", lambda: box(b"isom"), ImageTypeRefused, "one of its frames"),
    ("JPEG XL", lambda: b"\xff\x0a" + bytes(99), ImageTypeRefused, "JPEG XL"),
    ("JPEG 2000", lambda: b"\0\0\0\x0cjP  \r\n\x87\n" + bytes(99), ImageTypeRefused, "JPEG 2000"),
    ("icon", lambda: b"\0\0\1\0\1\0" + bytes(99), ImageTypeRefused, "icon"),
    ("Photoshop", lambda: b"8BPS\0\1" + bytes(99), ImageTypeRefused, "Photoshop"),
    ("PostScript, which Pillow would hand to Ghostscript", lambda: b"%!PS-Adobe-3.0", ImageTypeRefused, "PostScript"),
    ("ZIP", lambda: b"PK\x03\x04" + bytes(99), ImageTypeRefused, "ZIP"),
    ("base64 of base64", lambda: base64.b64encode(encode("PNG")), ImageTypeRefused, "encoded twice"),
    ("a data URL in a data URL", lambda: b"data:image/png;base64,iVBORw0KGgo=", ImageTypeRefused, "encoded twice"),
    ("a portable pixmap", lambda: b"P6 1 1 255\n123", ImageTypeRefused, "not of a kind that is known"),
    ("two bytes of a PNG", lambda: b"\x89P", ImageTypeRefused, "not of a kind that is known"),
]

UNREADABLE: list[Case] = [
    ("no bytes", lambda: b"", ImageUnreadable, "send the whole file"),
    ("PNG signature alone", lambda: b"\x89PNG\r\n\x1a\n", ImageUnreadable, "send the whole file"),
    ("JPEG start alone", lambda: b"\xff\xd8\xff", ImageUnreadable, "send the whole file"),
    ("JPEG start and zeros", lambda: b"\xff\xd8\xff" + bytes(500), ImageUnreadable, "send the whole file"),
    ("PNG of width 0", lambda: png(0, 64), ImageUnreadable, "send the whole file"),
    ("GIF of height 0", lambda: gif(64, 0), ImageUnreadable, "send the whole file"),
    ("JPEG of height 0", lambda: jpeg(64, 0), ImageUnreadable, "send the whole file"),
    ("BMP of width 0", lambda: bmp(0, 64), ImageUnreadable, "send the whole file"),
    ("BMP of negative width", lambda: bmp(-64, 64), ImageError, ""),
    ("TIFF of width 0", lambda: tiff(width=0), ImageUnreadable, "send the whole file"),
    ("PNG with less data than pixels", lambda: png(5000, 5000), ImageUnreadable, "send the whole file"),
    ("PNG with a damaged header", lambda: png(64, 64).replace(b"IHDR", b"IHDX"), ImageUnreadable, "save it again"),
    ("TIFF whose strip lies outside", lambda: tiff((273, 4, 1, 1 << 30)), ImageUnreadable, "save it again"),
    ("TIFF of nine samples a pixel", lambda: tiff((277, 3, 1, 9)), ImageUnreadable, "save it again"),
    ("TIFF without an end of directories", lambda: b"II*\0\x08\0\0\0\xff\xff" + bytes(40), ImageUnreadable, "save it"),
    (
        "JPEG of 12 bits",
        lambda: encode("JPEG").replace(b"\xff\xc0\0\x11\x08", b"\xff\xc0\0\x11\x0c"),
        ImageUnreadable,
        "",
    ),
    *[
        (
            f"{kind} cut off at {part:.0%}",
            lambda k=kind, p=part: (d := encode(k))[: int(len(d) * p)],
            ImageUnreadable,
            "whole",
        )
        for kind in KINDS
        for part in (0.25, 0.5, 0.9)
    ],
]


def huge_tiles() -> bytes:
    return tiff((259, 3, 1, 8), (322, 4, 1, 32768), (323, 4, 1, 32768))


def compressed(name: bytes, size: int) -> bytes:
    """A PNG chunk that grows to `size` bytes."""
    return chunk(name, b"a\0\0" + zlib.compress(bytes(size)))


def comment_bomb() -> bytes:
    return gif(64, 64, b"!\xfe" + b"\2ab" * 3_000_000 + b"\0")


def many_strips() -> bytes:
    return tiff((273, 4, 1_000_000, 1024), (278, 4, 1, 1), tail=struct.pack("<I", 1024) * 1_000_000)


def progressive_bomb(scans: int = 5000) -> bytes:
    """Each scan refines nothing, in some hundred bytes."""
    out = io.BytesIO()
    Image.new("L", (2000, 2000)).save(out, "JPEG", progressive=True)
    data = out.getvalue()
    return data[:-2] + data[data.rindex(b"\xff\xda") : -2] * scans + data[-2:]


def exif_bomb() -> bytes:
    """EXIF over 100 segments, with a resolution of a million fractions."""
    head = struct.pack("<IHHHIII", 8, 1, 0x11A, 5, 800_000, 64, 0)
    exif = (b"II*\0" + head).ljust(64, b"\0") + struct.pack("<II", 72, 1) * 800_000
    pieces = [exif[at : at + 65_000] for at in range(0, len(exif), 65_000)]
    segments = b"".join(b"\xff\xe1" + struct.pack(">H", len(piece) + 8) + b"Exif\0\0" + piece for piece in pieces)
    return b"\xff\xd8" + segments + encode("JPEG")[20:]


TOO_LARGE: list[Case] = [
    ("more bytes than allowed", lambda: encode("PNG") + bytes(20 << 20), ImageTooLarge, "make it smaller"),
    ("PNG bomb", lambda: png(60_000, 60_000), ImageTooLarge, "scale it down"),
    ("PNG just over the cap", lambda: png(8_193, 8_192), ImageTooLarge, "scale it down"),
    ("GIF bomb", lambda: gif(65_535, 65_535), ImageTooLarge, "scale it down"),
    ("GIF with a frame larger than its canvas", lambda: gif(9_000, 9_000, canvas=(1, 1)), ImageTooLarge, "scale it"),
    ("JPEG bomb", lambda: jpeg(65_500, 65_500), ImageTooLarge, "scale it down"),
    ("BMP bomb", lambda: bmp(60_000, 60_000), ImageTooLarge, "scale it down"),
    ("WebP bomb", lambda: webp(16_383, 16_383), ImageTooLarge, "scale it down"),
    ("TIFF bomb", lambda: tiff(width=60_000, height=60_000), ImageTooLarge, "scale it down"),
    ("TIFF of huge tiles", huge_tiles, ImageTooLarge, "scale it down"),
    ("TIFF of a million strips", many_strips, ImageTooLarge, "too many strips"),
    ("PNG with a text bomb", lambda: png(64, 64, compressed(b"zTXt", 9 << 20)), ImageTooLarge, "without metadata"),
    ("PNG with a profile bomb", lambda: png(64, 64, compressed(b"iCCP", 9 << 20)), ImageTooLarge, "without metadata"),
    ("PNG with 70 MB of texts", lambda: png(64, 64, compressed(b"zTXt", 999_999) * 70), ImageTooLarge, "metadata"),
    ("PNG of a million empty chunks", lambda: png(64, 64, chunk(b"prVt") * 1_000_000), ImageTooLarge, "save it again"),
    ("GIF with a comment in tiny pieces", comment_bomb, ImageTooLarge, "save it again"),
    ("JPEG with padding", lambda: b"\xff\xd8" + b"\xff" * 9_000_000 + encode("JPEG")[2:], ImageTooLarge, "again"),
    ("JPEG with an EXIF bomb", exif_bomb, ImageTooLarge, "EXIF"),
    ("JPEG with thousands of scans", progressive_bomb, ImageTooLarge, "scans"),
]  # fmt: skip

SHAPES: list[Case] = [
    ("thinner than 1:200", lambda: encode("PNG", (201, 1)), ImageError, "crop it"),
    ("a line, upright", lambda: encode("JPEG", (2, 500)), ImageError, "crop it"),
]

MISLABELLED = [
    ("PNG as JPEG", "PNG", "image/jpeg", "image/png"),
    ("JPEG as PNG", "JPEG", "image/png", "image/jpeg"),
    ("GIF as WebP", "GIF", "image/webp; x=y", "image/gif"),
    ("JPEG as HEIC", "JPEG", "image/heic", "image/jpeg"),
    ("PNG as text", "PNG", "text/plain", "image/png"),
]


@pytest.mark.parametrize(
    ("data", "error", "advice"),
    [pytest.param(*case[1:], id=case[0]) for case in NOT_A_PICTURE + UNREADABLE + TOO_LARGE + SHAPES],
)
def test_bad_pictures(data: Callable[[], bytes], error: type[ImageError], advice: str) -> None:
    made = data()
    began = time.process_time()
    with pytest.raises(error) as raised:
        normalise(made)
    assert time.process_time() - began < 1.0, "a refusal must be cheap"
    assert advice in raised.value.message
    assert raised.value.status == {ImageTypeRefused: 415, ImageUnreadable: 422, ImageTooLarge: 413}.get(
        type(raised.value), 400
    )
    assert len(raised.value.message) < 400
    assert raised.value.body()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(("kind", "declared", "right"), [pytest.param(*case[1:], id=case[0]) for case in MISLABELLED])
def test_mislabelled(kind: str, declared: str, right: str) -> None:
    with pytest.raises(ImageTypeRefused) as raised:
        normalise(encode(kind), declared_type=declared)
    assert raised.value.status == 415
    assert repr(declared.split(";")[0]) in raised.value.message
    assert kind in raised.value.message
    assert right in raised.value.message


def test_progressive_scans_within_reason_are_served() -> None:
    assert normalise(progressive_bomb(scans=80)).width == 512


def test_caps_can_be_set() -> None:
    with pytest.raises(ImageTooLarge, match="64 x 64 pixels, more than the 0 million"):
        normalise(encode("PNG"), limits=ImageLimits(max_pixels=4095))
    assert normalise(encode("PNG"), limits=ImageLimits(max_pixels=4096)).width == 64
    with pytest.raises(ImageTooLarge):
        normalise(encode("PNG"), limits=ImageLimits(max_bytes=100))


def test_webp_has_half_the_cap_because_its_decoder_takes_four_times_the_memory() -> None:
    with pytest.raises(ImageTooLarge, match="for WEBP; scale it down"):
        normalise(encode("WEBP"), limits=ImageLimits(max_pixels=8191))
    assert normalise(encode("WEBP"), limits=ImageLimits(max_pixels=8192)).width == 64


def test_pillow_is_left_as_it_was() -> None:
    from PIL import ImageFile

    before = (Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES)
    with pytest.raises(ImageTooLarge):
        normalise(png(60_000, 60_000))
    assert (Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES) == before == (89_478_485, False)


# --- data: URLs ---

PNG = encode("PNG")
BASE64 = base64.b64encode(PNG).decode()

GOOD_URLS = [
    ("plain", f"data:image/png;base64,{BASE64}", "image/png"),
    ("capitals", f"DATA:Image/PNG;BASE64,{BASE64}", "image/png"),
    ("no type", f"data:;base64,{BASE64}", None),
    ("more parameters", f"data:image/png;name=a.png;base64,{BASE64}", "image/png"),
    ("line breaks", "data:image/png;base64,\n" + base64.encodebytes(PNG).decode().replace("\n", "\r\n"), "image/png"),
    ("URL-safe alphabet", "data:image/png;base64," + base64.urlsafe_b64encode(PNG).decode(), "image/png"),
    ("no padding", f"data:image/png;base64,{BASE64.rstrip('=')}", "image/png"),
    ("escaped", "data:image/png;base64," + quote(BASE64, safe="").replace("%2F", "%2f"), "image/png"),
    ("blanks around it", f"  data:image/png;base64,{BASE64} \n", "image/png"),
]  # fmt: skip


@pytest.mark.parametrize(("url", "declared"), [pytest.param(*case[1:], id=case[0]) for case in GOOD_URLS])
def test_data_urls(url: str, declared: str | None) -> None:
    assert decode_data_url(url) == (PNG, declared)


BAD_URLS: list[tuple[str, str, type[ImageError], str]] = [
    ("empty", "", ImageError, "expected data:image/png;base64"),
    ("bare base64", BASE64, ImageError, "expected data:image/png;base64"),
    ("http", "http://example.com/a.png", ImageError, "send the picture as a data: URL"),
    ("https", "HTTPS://example.com/a.png", ImageError, "send the picture as a data: URL"),
    ("file", "file:///etc/passwd", ImageError, "send the picture as a data: URL"),
    ("ftp", "ftp://example.com/a.png", ImageError, "send the picture as a data: URL"),
    ("javascript", "javascript:alert(1)", ImageError, "send the picture as a data: URL"),
    ("a path", "/tmp/a.png", ImageError, "expected data:image/png;base64"),
    ("no comma", "data:image/png;base64", ImageError, "comma"),
    ("not base64", "data:image/png,%89PNG", ImageError, "not base64"),
    ("forgot ;base64", f"data:image/png,{BASE64}", ImageError, "expected data:image/png;base64"),
    ("wrong characters", "data:image/png;base64,iVBO*Rw0KGgo", ImageError, "encode the whole picture again"),
    ("other alphabets", "data:image/png;base64,iVBOéRw0KGgo", ImageError, "encode the picture again"),
    ("one character too few", "data:image/png;base64,iVBOR", ImageError, "cut off or altered"),
    ("padding in the middle", "data:image/png;base64,iVB=ORw0", ImageError, "cut off or altered"),
    ("plus became a blank", "data:image/png;base64,iVBO Rw0KGgo", ImageError, "'+' became a space"),
    ("foreign escapes", "data:image/png;base64,%69VBORw0KGgo", ImageError, "valid base64"),
    ("too large", "data:image/png;base64," + "A" * (28 << 20), ImageTooLarge, "smaller"),
    ("much too large, escaped", "data:image/png;base64," + "%2B" * (28 << 20), ImageTooLarge, "smaller"),
]


@pytest.mark.parametrize(("url", "error", "advice"), [pytest.param(*case[1:], id=case[0]) for case in BAD_URLS])
def test_bad_urls(url: str, error: type[ImageError], advice: str) -> None:
    began = time.process_time()
    with pytest.raises(error) as raised:
        decode_data_url(url)
    assert time.process_time() - began < 0.5
    assert type(raised.value) is error
    assert raised.value.status == (413 if error is ImageTooLarge else 400)
    assert advice in raised.value.message
    assert len(raised.value.message) < 300


def test_an_empty_data_url_is_an_empty_picture() -> None:
    data, declared = decode_data_url("data:image/png;base64,")
    with pytest.raises(ImageUnreadable, match="empty"):
        normalise(data, declared_type=declared)
