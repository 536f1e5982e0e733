"""Pixels: how large a picture becomes, and how any kind of pixel becomes RGB.

Works on Pillow pictures that are already decoded and checked; `images` calls it. Knows nothing of files and limits.
"""

from __future__ import annotations

from math import isfinite, sqrt

from PIL import Image, ImageCms

from visionchat_serve.errors import ImageUnreadable

MAX_ASPECT = 200  # Qwen's `smart_resize` raises above this

_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


def fit(width: int, height: int, side: int, min_side: int) -> tuple[int, int]:
    """The size to shrink to: longest side `side`; of a thin picture the short side stays at `min_side` or what it
    was, as long as the whole is no larger than a square of `side`. Never larger than it was."""
    scale = min(1.0, side / max(width, height))
    if min(width, height) * scale < min_side:
        scale = min(1.0, min_side / min(width, height), side / sqrt(width * height))
    new_width, new_height = max(1, round(width * scale)), max(1, round(height * scale))
    # rounding must not push a picture over the model's limit
    return min(new_width, new_height * MAX_ASPECT), min(new_height, new_width * MAX_ASPECT)


def resizable(picture: Image.Image) -> Image.Image:
    """In a mode whose pixels can be averaged: L, RGB, RGBA, CMYK, YCbCr."""
    mode = picture.mode
    if mode == "F" or mode.startswith("I"):
        return _eight_bits(picture)
    if picture.has_transparency_data:
        return picture if mode == "RGBA" else picture.convert("RGBA")
    if mode == "LAB":
        profile = ImageCms.createProfile
        converted = ImageCms.profileToProfile(picture, profile("LAB"), profile("sRGB"), outputMode="RGB")
        assert converted is not None
        return converted
    better = {"P": "RGB", "1": "L"}.get(mode)
    return picture if better is None else picture.convert(better)


def _eight_bits(picture: Image.Image) -> Image.Image:
    """16 and 32 bits or floating point to grey. 16 bits use their whole range; of the others only the file's maker
    knows the range, so what is there is stretched, unless it fits 0..1 or 0..255."""
    numbers = picture.convert("F")
    low, high = (0.0, 65535.0) if picture.mode.startswith("I;16") else _range(numbers)
    scale = 255 / ((high - low) or 1.0)
    return numbers.point(lambda value: value * scale + (-low * scale)).convert("L")


def _range(numbers: Image.Image) -> tuple[float, float]:
    low, high = (float(value) for value in numbers.getextrema())  # type: ignore[arg-type]
    if not isfinite(high - low):
        raise ImageUnreadable("the picture holds numbers without end; save it with 8 bits a channel")
    for whole in (1.0, 255.0, 65535.0):
        if low >= 0 and high <= whole:
            return 0.0, whole
    return low, high


def shrink(picture: Image.Image, size: tuple[int, int]) -> Image.Image:
    """Averages whole blocks first where the picture is over three times too large; the eye sees no difference."""
    if picture.size == size:
        return picture
    return picture.resize(size, Image.Resampling.LANCZOS, reducing_gap=3.0)


def on_white(picture: Image.Image) -> Image.Image:
    if picture.mode == "RGBA":
        picture = Image.alpha_composite(Image.new("RGBA", picture.size, "white"), picture)
    return picture.convert("RGB")


def upright(picture: Image.Image, orientation: int) -> Image.Image:
    """Undo the turn that EXIF's orientation (1 to 8) describes."""
    turn = _UPRIGHT.get(orientation)
    return picture if turn is None else picture.transpose(turn)
