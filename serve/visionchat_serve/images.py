"""The picture front door: from the bytes a client sent to a small, upright RGB picture that a model can look at.

    sniff -> caps on bytes, pixels and structure -> decode -> shrink -> RGB on white -> upright -> PNG or JPEG

Called by the gateway, before the queue, in a small pool of threads: synchronous, no I/O, no state. Whatever is wrong
with a picture leaves here as an `ImageError`. Knows neither HTTP nor the queue nor any model; it ignores colour
profiles, as the model's own training did.

Memory: one call takes at most some 10 bytes for each of `max_pixels`, 670 MB at the default.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from PIL import Image

from visionchat_serve import data_url
from visionchat_serve.errors import ImageError, ImageTooLarge, ImageUnreadable, VisionChatError
from visionchat_serve.image_bombs import BoundedReader, check_scans, check_structure, exif_orientation
from visionchat_serve.image_header import Kind, check_declared, sniff
from visionchat_serve.image_pixels import MAX_ASPECT, fit, on_white, resizable, shrink, upright

Detail = Literal["low", "auto", "high"]


@dataclass(frozen=True, slots=True)
class ImageLimits:
    """What is let in, and how large it comes out (longest side in pixels, for each `detail`).

    67 megapixels let every phone's picture in and keep the memory of a decode at 670 MB.
    """

    max_bytes: int = 20 << 20
    max_pixels: int = 1 << 26
    min_side: int = 64
    low_side: int = 256
    auto_side: int = 512
    high_side: int = 1024

    def side(self, detail: Detail) -> int:
        """`low` is never more than `auto`, `high` never less."""
        sides = {"low": min(self.low_side, self.auto_side), "high": max(self.high_side, self.auto_side)}
        return sides.get(detail, self.auto_side)


@dataclass(frozen=True, slots=True)
class NormalisedImage:
    """An RGB picture without metadata, as PNG or JPEG."""

    data: bytes
    width: int
    height: int
    media_type: str


DEFAULT_LIMITS = ImageLimits()


def decode_data_url(url: str, limits: ImageLimits = DEFAULT_LIMITS) -> tuple[bytes, str | None]:
    """A `data:` URL's bytes and declared media type."""
    return data_url.decode_data_url(url, limits.max_bytes)


def normalise(
    data: bytes,
    *,
    detail: Detail = "auto",
    declared_type: str | None = None,
    limits: ImageLimits = DEFAULT_LIMITS,
) -> NormalisedImage:
    """Raises `ImageUnreadable` (422), `ImageTypeRefused` (415), `ImageTooLarge` (413) or `ImageError` (400)."""
    if len(data) > limits.max_bytes:
        raise data_url.too_large(len(data), limits.max_bytes)
    kind = sniff(data)
    check_declared(kind, declared_type)
    check_structure(kind, data)
    with _pillow_errors(kind, limits):
        picture = _decode(kind, data, limits.side(detail), limits)
        return _encode(picture, kind)


# --- from bytes to an RGB picture ---


def _decode(kind: Kind, data: bytes, side: int, limits: ImageLimits) -> Image.Image:
    with Image.open(BoundedReader(data), formats=(kind,)) as picture:
        _check_size(picture, kind, limits)
        size = fit(*picture.size, side, limits.min_side)
        if kind == "JPEG":
            _prepare_jpeg(picture, data, size)
        elif kind == "TIFF":
            picture.is_animated = True  # type: ignore[attr-defined]  # else Pillow decodes EXIF's lists: 380 MB, 5 s
        picture.load()
        small = shrink(resizable(picture), size)
        # TIFF is turned by Pillow; PNG may hold its EXIF behind the pixels, so it is there only now
        orientation = 1 if kind == "TIFF" else exif_orientation(picture.info.get("exif") or b"")
    return upright(on_white(small), orientation)


def _check_size(picture: Image.Image, kind: Kind, limits: ImageLimits) -> None:
    """From the header: nothing is decoded yet."""
    width, height = picture.size
    # libwebp keeps two canvases and a copy beside the picture: 16 bytes a pixel, where the others take 4
    allowed = limits.max_pixels // 2 if kind == "WEBP" else limits.max_pixels
    # libtiff makes room for a whole tile, even when the picture is smaller
    tile = _tag(picture, 322) * _tag(picture, 323) if kind == "TIFF" else 0
    if max(width * height, tile) > allowed:
        raise ImageTooLarge(
            f"the picture has {width} x {height} pixels, more than the {allowed / 1e6:.0f} million that are allowed "
            f"for {kind}; scale it down before sending (the model sees some {limits.auto_side} pixels a side)"
        )
    if max(width, height) > MAX_ASPECT * min(width, height):
        raise ImageError(
            f"the picture has {width} x {height} pixels: one side may be at most {MAX_ASPECT} times the other; crop it"
        )


def _tag(picture: Image.Image, number: int) -> int:
    value = picture.tag_v2.get(number, 0)  # type: ignore[attr-defined]
    return value if isinstance(value, int) else 0


def _prepare_jpeg(picture: Image.Image, data: bytes, size: tuple[int, int]) -> None:
    """Let libjpeg decode a large picture at a half, a quarter or an eighth, never below twice what is wanted."""
    if picture.info.get("progressive"):
        check_scans(data, picture.tile[0].offset)  # type: ignore[attr-defined]
    picture.draft(None, (2 * size[0], 2 * size[1]))


# --- from an RGB picture to bytes ---


def _encode(picture: Image.Image, kind: Kind) -> NormalisedImage:
    """What was lossy stays lossy and small; what was exact stays exact. Never with the source's metadata."""
    picture.info = {}
    out = io.BytesIO()
    if kind == "JPEG":
        picture.save(out, "JPEG", quality=95, subsampling=0)
    else:
        picture.save(out, "PNG", compress_level=1)
    media_type = "image/jpeg" if kind == "JPEG" else "image/png"
    return NormalisedImage(out.getvalue(), picture.width, picture.height, media_type)


@contextmanager
def _pillow_errors(kind: Kind, limits: ImageLimits) -> Iterator[None]:
    """Pillow's plugins raise almost anything on damaged data (SyntaxError, struct.error, OSError, ValueError,
    KeyError, OverflowError, zlib.error, …); to the caller all of it means the same."""
    try:
        yield
    except VisionChatError:
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning, MemoryError) as error:
        megapixels = limits.max_pixels / 1e6
        raise ImageTooLarge(f"the picture has more than {megapixels:.0f} million pixels; scale it down") from error
    except Exception as error:
        if "too large" in str(error).lower() or "too much memory" in str(error).lower():  # PNG text and profiles
            raise ImageTooLarge("the picture's metadata is too large; save it without metadata") from error
        raise ImageUnreadable(
            f"the {kind} picture cannot be read: it is cut off, damaged or of an unusual kind ({_first_line(error)}); "
            "send the whole file, or save it again as JPEG or PNG"
        ) from error


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:120]
