"""Files that are small and well-formed, but cost a decoder gigabytes or minutes. `images` asks here before it decodes.

The number of pixels is not enough to tell. Each rule names what it prevents, with what was measured on a file of
20 MB (Pillow 13, libjpeg-turbo 3.2) before the rule was there. Knows the formats' structure, not their pixels.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator
from typing import NamedTuple

from visionchat_serve.errors import ImageTooLarge
from visionchat_serve.image_header import Kind

MAX_READS = 100_000
MAX_LIST = 100_000
MAX_SCANS = 100  # encoders write about ten
MAX_EXIF_SEGMENTS = 16  # cameras write one
_ORIENTATION = 0x0112
_SHORT = 3
_BYTES_AND_TEXT = (1, 2, 6, 7)


class BoundedReader(io.BytesIO):
    """A file in memory that may be read only so often.

    Pillow reads chunks, comments and padding one by one in Python: a GIF with a comment in pieces of two bytes took
    870 MB, a PNG with empty chunks 170 MB and 4 s, a JPEG with padding 8 s. A usual picture needs some hundred reads.
    """

    _reads = 0

    def read(self, size: int | None = -1, /) -> bytes:
        self._reads += 1
        if self._reads > MAX_READS:
            raise ImageTooLarge(_too_much("is cut into too many pieces"))
        return super().read(size)


def check_structure(kind: Kind, data: bytes) -> None:
    """Raise `ImageTooLarge` for a file whose structure, not its size in pixels, would cost too much."""
    if kind == "TIFF":
        _check_tiff_lists(data)
    elif kind == "JPEG" and data.count(b"Exif\0\0") > MAX_EXIF_SEGMENTS:
        # Pillow glues them together and reads the resolution, which may be a list: 440 MB and 5 s.
        raise ImageTooLarge(_too_much("has too much EXIF data"))


def check_scans(data: bytes, start: int) -> None:
    """A progressive JPEG of 64 megapixels takes 40 ms for each of its scans, and a scan needs only 100 bytes: 2 hours.

    `start` is where the first scan's data begin; before it, a thumbnail could hold markers of its own.
    """
    if data.count(b"\xff\xda", start) >= MAX_SCANS:
        raise ImageTooLarge(_too_much("has too many progressive scans"))


def exif_orientation(exif: bytes) -> int:
    """EXIF orientation 1 to 8; 1 when there is none or the data is damaged.

    Pillow's own reader would decode whatever type and length the tag claims, also a list of millions of fractions.
    """
    for entry in _tiff_entries(exif.removeprefix(b"Exif\0\0")):
        if entry.tag == _ORIENTATION and entry.type == _SHORT and entry.length == 1 and 1 <= entry.short <= 8:
            return entry.short
    return 1


class _Entry(NamedTuple):
    tag: int
    type: int
    length: int
    short: int  # the value, when it is one SHORT


def _tiff_entries(data: bytes) -> Iterator[_Entry]:
    """The first directory of a TIFF, which is also EXIF's form; ends early where the data is damaged."""
    order, big = ("<" if data[:2] == b"II" else ">"), data[2:3] == b"+"
    at, length, entry = ("Q", "Q", "HHQHHI") if big else ("I", "H", "HHIHH")
    try:
        (start,) = struct.unpack_from(order + at, data, 8 if big else 4)
        (count,) = struct.unpack_from(order + length, data, start)
        first, size = start + struct.calcsize(order + length), struct.calcsize(order + entry)
        for position in range(first, first + size * count, size):
            yield _Entry(*struct.unpack_from(order + entry, data, position)[:4])
    except (struct.error, OverflowError):
        return


def _check_tiff_lists(data: bytes) -> None:
    """Pillow makes 240 bytes of objects for each strip that a TIFF lists: 1.2 GB and 36 s."""
    if any(entry.length > MAX_LIST and entry.type not in _BYTES_AND_TEXT for entry in _tiff_entries(data)):
        raise ImageTooLarge(_too_much("is cut into too many strips"))


def _too_much(what: str) -> str:
    return f"the picture {what}; save it again as a plain JPEG or PNG, without metadata"
