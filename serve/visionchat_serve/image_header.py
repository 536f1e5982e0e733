"""What a file says it is in its first bytes: which picture format, or which well-known thing that is none.

Looks only at bytes and never decodes; knows neither Pillow nor HTTP. `images` asks here before it lets a decoder
near the data.
"""

from __future__ import annotations

from typing import Literal

from visionchat_serve.errors import ImageTypeRefused, ImageUnreadable

Kind = Literal["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF"]

ACCEPTED = "JPEG, PNG, WebP, GIF, BMP or TIFF"

_MEDIA_TYPES: dict[str, Kind] = {
    "image/jpeg": "JPEG",
    "image/jpg": "JPEG",
    "image/pjpeg": "JPEG",
    "image/mpo": "JPEG",
    "image/png": "PNG",
    "image/x-png": "PNG",
    "image/apng": "PNG",
    "image/webp": "WEBP",
    "image/gif": "GIF",
    "image/bmp": "BMP",
    "image/x-bmp": "BMP",
    "image/x-ms-bmp": "BMP",
    "image/tiff": "TIFF",
    "image/tif": "TIFF",
}
_GENERIC_TYPES = {"", "image/*", "image", "application/octet-stream", "binary/octet-stream"}
_BMP_HEADER_SIZES = {12, 40, 52, 56, 64, 108, 124}  # without this, any text that begins with "BM" would be one

_CONVERT = "convert it to JPEG or PNG and send that"
_OTHERS: tuple[tuple[bytes, str, str], ...] = (
    (b"%PDF-", "a PDF document", "send its page as a PNG picture"),
    (b"\xff\x0a", "a JPEG XL picture", _CONVERT),
    (b"\x00\x00\x00\x0cJXL ", "a JPEG XL picture", _CONVERT),
    (b"\x00\x00\x00\x0cjP  ", "a JPEG 2000 picture", _CONVERT),
    (b"\xff\x4f\xff\x51", "a JPEG 2000 picture", _CONVERT),
    (b"\x00\x00\x01\x00", "an icon (ICO)", _CONVERT),
    (b"8BPS", "a Photoshop document", _CONVERT),
    (b"%!PS", "a PostScript document", _CONVERT),
    (b"PK\x03\x04", "a ZIP archive", "send the picture itself"),
    (b"iVBORw0KG", "base64 text", "it was encoded twice: encode the picture's bytes once"),
    (b"/9j/", "base64 text", "it was encoded twice: encode the picture's bytes once"),
    (b"data:", "a data: URL", "it was encoded twice: encode the picture's bytes once"),
)
_FTYP_BRANDS = {
    **dict.fromkeys((b"avif", b"avis"), "an AVIF picture"),
    **dict.fromkeys((b"heic", b"heix", b"heim", b"heis", b"hevc", b"mif1", b"msf1"), "a HEIC picture"),
}


def sniff(data: bytes) -> Kind:
    """The picture format by magic bytes. Raises `ImageTypeRefused` that names what else it is, if that is known."""
    if not data:
        raise ImageUnreadable("the picture is empty (0 bytes); send the whole file")
    kind = _accepted_kind(data)
    if kind is not None:
        return kind
    raise ImageTypeRefused(f"{_other_kind(data)} (accepted: {ACCEPTED})")


def is_picture_type(declared: str) -> bool:
    """Whether a `Content-Type` may stand before a picture; servers that do not know send a general one."""
    named = declared.split(";")[0].strip().lower()
    return named in _GENERIC_TYPES or named in _MEDIA_TYPES


def check_declared(kind: Kind, declared: str | None) -> None:
    """Refuse a picture that is announced as something else: one of the two is a mistake of the caller's."""
    named = (declared or "").split(";")[0].strip().lower()
    if named in _GENERIC_TYPES or _MEDIA_TYPES.get(named) == kind:
        return
    right = next(media for media, of in _MEDIA_TYPES.items() if of == kind)
    raise ImageTypeRefused(f"the picture is declared as {named[:60]!r} but is {kind}; declare it as {right!r}")


def _accepted_kind(data: bytes) -> Kind | None:
    if data.startswith(b"\xff\xd8\xff"):
        return "JPEG"
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return "PNG"
    if data.startswith((b"GIF87a", b"GIF89a")):
        return "GIF"
    if data.startswith(b"RIFF") and data[8:12] == b"WEBP":
        return "WEBP"
    if data.startswith((b"II*\0", b"MM\0*", b"II+\0")):
        return "TIFF"
    if data.startswith(b"BM") and int.from_bytes(data[14:18], "little") in _BMP_HEADER_SIZES:
        return "BMP"
    return None


def _other_kind(data: bytes) -> str:
    """What it is instead, and what to do."""
    if data[4:8] == b"ftyp":
        what = _FTYP_BRANDS.get(data[8:12])
        return f"{what} is not accepted; {_CONVERT}" if what else "a video is not accepted; send one of its frames"
    for prefix, what, advice in _OTHERS:
        if data.startswith(prefix):
            return f"{what} is not accepted; {advice}"
    text = data[:1024].lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if text.startswith((b"<!doctype html", b"<html")):
        return "an HTML page is not accepted; send the picture, not the page that shows it"
    if text.startswith(b"<") and b"<svg" in text:
        return "an SVG drawing is not accepted; render it to PNG and send that"
    return "not a picture, or not of a kind that is known; send a picture file's bytes unchanged"
