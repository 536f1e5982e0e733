"""Pictures as they stand in a request: `data:` URLs (RFC 2397) with base64.

Pictures named by address are refused here, with the reason; where they are allowed, `image_download` has fetched them
before. Knows nothing of what the bytes mean.
"""

from __future__ import annotations

import binascii
import re

from visionchat_serve.errors import ImageError, ImageTooLarge

EXPECTED = "expected data:image/png;base64,… (or image/jpeg, …)"

_URL_SAFE = bytes.maketrans(b"-_", b"+/")
_LINE_BREAKS = b"\r\n\t"
# Only what base64 needs: decoding arbitrary escapes of a 60-MB body would take seconds.
_ESCAPES = (("%2B", "+"), ("%2F", "/"), ("%3D", "="), ("%0D", ""), ("%0A", ""))
_MOST_TEXT_PER_BYTE = 4  # each base64 character escaped (3 x 4/3)


def decode_data_url(url: str, max_bytes: int) -> tuple[bytes, str | None]:
    """The bytes and the media type that was declared for them, None if there was none.

    Tolerates what clients send: line breaks, the URL-safe alphabet, missing padding, %2B %2F %3D.
    """
    header, payload = _split(url.strip())
    media_type, *parameters = (part.strip().lower() for part in header.split(";"))
    if "base64" not in parameters:
        raise ImageError(f"the data: URL is not base64; {EXPECTED}")
    if len(payload) > _MOST_TEXT_PER_BYTE * max_bytes + 1024:
        raise too_large(len(payload) // _MOST_TEXT_PER_BYTE, max_bytes)
    return _decode(_plain(payload), max_bytes), media_type or None


def _split(url: str) -> tuple[str, str]:
    scheme = re.match(r"([A-Za-z][A-Za-z0-9+.-]{0,30}):", url)
    if scheme is None:
        raise ImageError(f"the picture must be a data: URL, not bare text or base64; {EXPECTED}")
    name = scheme[1].lower()
    if name in ("http", "https"):
        raise ImageError("image URLs are not allowed by this server; send the picture as a data: URL")
    if name != "data":
        raise ImageError(f"{name}: URLs are not supported; send the picture as a data: URL")
    header, comma, payload = url[len("data:") :].partition(",")
    if not comma or len(header) > 200:
        raise ImageError(f"the data: URL has no comma before its data; {EXPECTED}")
    return header, payload


def _plain(payload: str) -> bytes:
    """Standard base64 characters, without padding."""
    if "%" in payload:
        for escape, character in _ESCAPES:
            payload = payload.replace(escape, character).replace(escape.lower(), character)
    try:
        text = payload.encode("ascii")
    except UnicodeEncodeError:
        raise ImageError("the data: URL holds characters that are not base64; encode the picture again") from None
    return text.translate(_URL_SAFE, delete=_LINE_BREAKS).strip().rstrip(b"=")


def _decode(text: bytes, max_bytes: int) -> bytes:
    size = len(text) * 3 // 4
    if size > max_bytes:
        raise too_large(size, max_bytes)
    try:
        return binascii.a2b_base64(text + b"=" * (-len(text) % 4), strict_mode=True)
    except binascii.Error:
        hint = "a '+' became a space on the way" if b" " in text else "it is cut off or altered"
        raise ImageError(f"the data: URL is not valid base64 ({hint}); encode the whole picture again") from None


def too_large(size: int, max_bytes: int) -> ImageTooLarge:
    return ImageTooLarge(
        f"the picture has at least {size / 1e6:.1f} MB, more than the {max_bytes / 1e6:.1f} MB that are allowed; "
        "make it smaller before sending"
    )
