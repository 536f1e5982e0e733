"""The picture front door on good pictures: every format and pixel kind comes out small, upright and RGB."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageCms, ImageDraw

from visionchat_serve.images import ImageLimits, NormalisedImage, normalise

RED, WHITE = (255, 0, 0), (255, 255, 255)


def encode(picture: Image.Image, kind: str, **options: Any) -> bytes:
    out = io.BytesIO()
    picture.save(out, kind, **options)
    return out.getvalue()


def decode(image: NormalisedImage) -> Image.Image:
    picture = Image.open(io.BytesIO(image.data))
    picture.load()
    assert picture.mode == "RGB"
    assert picture.size == (image.width, image.height)
    assert picture.format == {"image/png": "PNG", "image/jpeg": "JPEG"}[image.media_type]
    return picture


def assert_near(seen: Any, wanted: tuple[int, int, int], by: int = 12) -> None:
    assert all(abs(a - b) <= by for a, b in zip(seen, wanted, strict=True)), (seen, wanted)


def corner(width: int = 120, height: int = 80) -> Image.Image:
    """Black, its upper left quarter red: shows which way is up."""
    picture = Image.new("RGB", (width, height))
    picture.paste(RED, (0, 0, width // 2, height // 2))
    return picture


# --- formats and pixel kinds ---


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF"])
def test_every_accepted_format(kind: str) -> None:
    image = normalise(encode(corner(), kind))
    assert image.media_type == ("image/jpeg" if kind == "JPEG" else "image/png")
    picture = decode(image)
    assert picture.size == (120, 80)
    assert_near(picture.getpixel((20, 20)), RED)
    assert_near(picture.getpixel((100, 60)), (0, 0, 0))


def test_exact_sources_stay_exact() -> None:
    noise = Image.fromarray(np.random.default_rng(1).integers(0, 256, (90, 70, 3), dtype=np.uint8))
    for data in (encode(noise, "PNG"), encode(noise, "BMP"), encode(noise, "WEBP", lossless=True)):
        assert decode(normalise(data)).tobytes() == noise.tobytes()


def test_jpeg_stays_close_to_its_source() -> None:
    y, x = np.mgrid[0:200, 0:300]
    smooth = Image.fromarray(np.stack([x * 255 // 300, y * 255 // 200, (x + y) * 255 // 500], -1).astype(np.uint8))
    data = encode(smooth, "JPEG", quality=90)
    before = np.asarray(Image.open(io.BytesIO(data)), dtype=int)
    assert np.abs(before - np.asarray(decode(normalise(data)), dtype=int)).mean() < 1.5


GREY_RAMP = np.arange(64 * 64, dtype=np.float64).reshape(64, 64) / (64 * 64 - 1)
GREYS = {
    "1 bit": (Image.fromarray(GREY_RAMP > 0.5), "PNG"),
    "grey": (Image.fromarray((GREY_RAMP * 255).astype(np.uint8)), "PNG"),
    "16-bit PNG": (Image.fromarray((GREY_RAMP * 65535).astype(np.uint16)), "PNG"),
    "16-bit TIFF": (Image.fromarray((GREY_RAMP * 65535).astype(np.uint16)), "TIFF"),
    "32-bit integers": (Image.fromarray((GREY_RAMP * 1_000_000).astype(np.int32)), "TIFF"),
    "negative integers": (Image.fromarray((GREY_RAMP * 1000 - 500).astype(np.int32)), "TIFF"),
    "floats in 0..1": (Image.fromarray(GREY_RAMP.astype(np.float32)), "TIFF"),
    "floats in 0..255": (Image.fromarray((GREY_RAMP * 255).astype(np.float32)), "TIFF"),
    "floats around 0": (Image.fromarray((GREY_RAMP * 8 - 4).astype(np.float32)), "TIFF"),
}


@pytest.mark.parametrize("name", GREYS)
def test_grey_of_any_depth_keeps_its_range(name: str) -> None:
    picture, kind = GREYS[name]
    out = np.asarray(decode(normalise(encode(picture, kind))), dtype=int)
    assert out[0, 0].tolist() == [0, 0, 0]
    assert (out[-1, -1] >= 254).all()
    if name != "1 bit":
        assert np.abs(out[..., 0] - GREY_RAMP * 255).max() <= 2


def test_big_endian_16_bit_tiff() -> None:
    ramp = (GREY_RAMP * 65535).astype(">u2")
    head = b"MM\0*\0\0\0\x08" + b"\0\x08"
    entries = [(256, 64), (257, 64), (258, 16), (259, 1), (262, 1), (273, 256), (277, 1), (278, 64)]
    for tag, value in entries:
        head += tag.to_bytes(2, "big") + b"\0\x03\0\0\0\x01" + value.to_bytes(2, "big") + b"\0\0"
    out = np.asarray(decode(normalise(head.ljust(256, b"\0") + ramp.tobytes())), dtype=int)
    assert np.abs(out[..., 0] - GREY_RAMP * 255).max() <= 2


def test_constant_and_nan_numbers_do_not_divide_by_zero() -> None:
    for value in (-5.0, 0.0, 300.0):
        data = encode(Image.fromarray(np.full((64, 64), value, np.float32)), "TIFF")
        assert decode(normalise(data)).size == (64, 64)


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_transparent_parts_become_white(mode: str) -> None:
    picture = Image.new("RGBA", (100, 100), (0, 0, 0, 0))
    picture.paste((255, 0, 0, 255), (0, 0, 50, 100))
    out = decode(normalise(encode(picture.convert(mode), "PNG")))
    assert_near(out.getpixel((80, 50)), WHITE)
    assert_near(out.getpixel((20, 50)), RED if mode != "LA" else (76, 76, 76))


def test_half_transparent_is_mixed_with_white() -> None:
    out = decode(normalise(encode(Image.new("RGBA", (64, 64), (255, 0, 0, 128)), "PNG")))
    assert_near(out.getpixel((9, 9)), (255, 127, 127), by=1)


@pytest.mark.parametrize("mode", ["RGB", "L", "1"])
def test_a_transparent_colour_becomes_white(mode: str) -> None:
    picture = Image.new(mode, (64, 64), 0)
    key = (0, 0, 0) if mode == "RGB" else 0
    out = decode(normalise(encode(picture, "PNG", transparency=key)))
    assert_near(out.getpixel((9, 9)), WHITE)


def test_shrinking_does_not_mix_in_colours_hidden_under_transparency() -> None:
    picture = Image.new("RGBA", (2000, 2000), (0, 255, 0, 0))  # green that nobody can see
    picture.paste((255, 0, 0, 255), (0, 0, 1000, 2000))
    out = np.asarray(decode(normalise(encode(picture, "PNG", compress_level=1))), dtype=int)
    assert (out[..., 1] <= out[..., 0] + 2).all()


def test_transparent_gif_and_webp() -> None:
    picture = Image.new("RGBA", (64, 64), (0, 0, 0, 0))
    for kind in ("GIF", "WEBP", "TIFF"):
        assert_near(decode(normalise(encode(picture, kind))).getpixel((9, 9)), WHITE)


def test_palette_gif_keeps_its_colours() -> None:
    data = encode(corner().convert("P", palette=Image.Palette.ADAPTIVE, colors=4), "GIF")
    assert_near(decode(normalise(data)).getpixel((20, 20)), RED)


def test_cmyk_jpeg_adobe_inverted_and_tiff() -> None:
    red = Image.new("CMYK", (64, 64), (0, 255, 255, 0))
    assert_near(decode(normalise(encode(red, "TIFF"))).getpixel((9, 9)), RED)
    data = encode(red, "JPEG", quality=95)
    assert b"Adobe" in data  # written inverted, as Photoshop does
    assert_near(decode(normalise(data)).getpixel((9, 9)), RED)


def test_lab_tiff() -> None:
    profile = ImageCms.createProfile
    lab = ImageCms.profileToProfile(corner(), profile("sRGB"), profile("LAB"), outputMode="LAB")
    assert lab is not None
    assert_near(decode(normalise(encode(lab, "TIFF"))).getpixel((20, 20)), RED)


def test_ycbcr_tiff() -> None:
    data = encode(corner().convert("YCbCr"), "TIFF", compression="jpeg")
    assert_near(decode(normalise(data)).getpixel((20, 20)), RED, by=20)


@pytest.mark.parametrize("compression", ["raw", "tiff_lzw", "tiff_adobe_deflate", "packbits", "jpeg"])
def test_tiff_compressions(compression: str) -> None:
    assert_near(decode(normalise(encode(corner(), "TIFF", compression=compression))).getpixel((20, 20)), RED, by=20)


@pytest.mark.parametrize("kind", ["GIF", "PNG", "WEBP", "TIFF"])
def test_the_first_frame_of_an_animation(kind: str) -> None:
    later = [Image.new("RGB", (64, 64), "blue"), Image.new("RGB", (64, 64), "green")]
    data = encode(Image.new("RGB", (64, 64), "red"), kind, save_all=True, append_images=later)
    assert Image.open(io.BytesIO(data)).n_frames == 3  # type: ignore[attr-defined]
    assert_near(decode(normalise(data)).getpixel((9, 9)), RED)


def test_mpo_is_served_as_the_jpeg_that_it_is() -> None:
    second = [Image.new("RGB", (900, 600), "blue")]
    data = encode(corner(900, 600), "MPO", save_all=True, append_images=second)
    assert Image.open(io.BytesIO(data)).format == "MPO"
    image = normalise(data, declared_type="image/jpeg")
    assert image.media_type == "image/jpeg"
    assert_near(decode(image).getpixel((60, 60)), RED)


@pytest.mark.parametrize("options", [{"progressive": True}, {"subsampling": 0}, {"restart_marker_rows": 1}])
def test_jpeg_variants(options: dict[str, Any]) -> None:
    assert_near(decode(normalise(encode(corner(1200, 800), "JPEG", **options))).getpixel((60, 60)), RED)


# --- which way is up ---

STORED_AS = {
    1: None,
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_90,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_270,
}


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
@pytest.mark.parametrize("orientation", STORED_AS)
def test_exif_orientation(kind: str, orientation: int) -> None:
    upright = corner(1200, 800)
    turn = STORED_AS[orientation]
    stored = upright if turn is None else upright.transpose(turn)
    exif = Image.Exif()
    exif[0x0112] = orientation
    out = decode(normalise(encode(stored, kind, exif=exif)))
    assert out.size == (512, 341)
    assert_near(out.getpixel((40, 40)), RED)
    assert_near(out.getpixel((480, 40)), (0, 0, 0))
    assert_near(out.getpixel((40, 300)), (0, 0, 0))


@pytest.mark.parametrize(
    "exif", [b"Exif\0\0", b"Exif\0\0garbage", b"Exif\0\0II*\0\xff\xff\xff\xff", b"Exif\0\0MM\0*\0\0\0\x08\xff\xff"]
)
def test_damaged_exif_does_not_cost_the_picture(exif: bytes) -> None:
    assert decode(normalise(encode(corner(), "JPEG", exif=exif))).size == (120, 80)


def test_no_metadata_comes_out() -> None:
    secret = "52.5200 N 13.4050 E"
    exif = Image.Exif()
    exif[0x010E] = secret
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    for kind in ("JPEG", "PNG", "WEBP", "TIFF"):
        out = normalise(encode(corner(), kind, exif=exif, icc_profile=profile, comment=secret))
        assert not (set(decode(out).info) - {"jfif", "jfif_version", "jfif_unit", "jfif_density"})
        assert secret.encode() not in out.data
        assert b"acsp" not in out.data  # the mark of a colour profile


# --- size ---

SIZES = [  # in, detail, out
    ((4000, 3000), "auto", (512, 384)),
    ((3000, 4000), "auto", (384, 512)),
    ((4000, 3000), "low", (256, 192)),
    ((4000, 3000), "high", (1024, 768)),
    ((512, 512), "auto", (512, 512)),
    ((100, 80), "high", (100, 80)),
    ((1, 1), "auto", (1, 1)),
    ((27, 300), "auto", (27, 300)),
    ((1000, 100), "auto", (640, 64)),
    ((4000, 64), "auto", (4000, 64)),
    ((2000, 10), "auto", (2000, 10)),
]


@pytest.mark.parametrize(("size", "detail", "wanted"), SIZES)
def test_sizes(size: tuple[int, int], detail: Any, wanted: tuple[int, int]) -> None:
    for kind in ("PNG", "JPEG"):
        out = normalise(encode(Image.new("L", size, 200), kind), detail=detail)
        assert (out.width, out.height) == wanted
        assert_near(decode(out).getpixel((0, 0)), (200, 200, 200), by=3)


def test_limits_set_the_sides() -> None:
    limits = ImageLimits(auto_side=200)
    assert [limits.side(detail) for detail in ("low", "auto", "high")] == [200, 200, 1024]
    assert normalise(encode(Image.new("L", (800, 400)), "PNG"), limits=limits).width == 200


def test_small_text_survives_the_shrinking() -> None:
    """LANCZOS after a reduction looks like LANCZOS alone, for JPEG also after decoding at a smaller scale."""
    picture = Image.new("RGB", (2400, 1600), "white")
    draw = ImageDraw.Draw(picture)
    for step in range(0, 2400, 60):
        draw.line((step, 0, 2400 - step, 1600), fill=(step % 256, 90, 0), width=9)
    wanted = np.asarray(picture.resize((512, 341), Image.Resampling.LANCZOS), dtype=int)
    for data in (encode(picture, "PNG", compress_level=1), encode(picture, "JPEG", quality=95)):
        assert np.abs(np.asarray(decode(normalise(data)), dtype=int) - wanted).mean() < 3


def test_the_same_bytes_give_the_same_bytes() -> None:
    for kind in ("PNG", "JPEG"):
        data = encode(corner(900, 700), kind)
        assert normalise(data) == normalise(data)


def test_declared_types_that_say_the_truth_or_nothing() -> None:
    data = encode(corner(), "JPEG")
    for declared in ("image/jpeg", "image/jpg", "IMAGE/JPEG; q=1", "image/*", "application/octet-stream", "", None):
        assert normalise(data, declared_type=declared).width == 120
