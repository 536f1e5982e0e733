"""One small picture of every kind that the front door takes, to be damaged by tests."""

from __future__ import annotations

import io

from PIL import Image


def _seeds() -> list[bytes]:
    noise = Image.effect_noise((24, 16), 60)
    exif = Image.Exif()
    exif[0x0112] = 6
    exif[0x011A] = 72.5
    frames = {"save_all": True, "append_images": [noise.convert("RGB")]}
    made: list[tuple[str, str, dict[str, object]]] = [
        ("JPEG", "RGB", {"exif": exif}),
        ("JPEG", "RGB", {"progressive": True}),
        ("JPEG", "CMYK", {}),
        ("MPO", "RGB", dict(frames)),
        ("PNG", "RGB", {"exif": exif, "icc_profile": b"x" * 128}),
        ("PNG", "P", {"transparency": 0}),
        ("PNG", "I;16", {}),
        ("PNG", "RGB", dict(frames)),
        ("GIF", "P", {"transparency": 0, "comment": b"hello"}),
        ("GIF", "P", dict(frames)),
        ("WEBP", "RGB", {"exif": exif}),
        ("WEBP", "RGBA", {"lossless": True}),
        ("WEBP", "RGB", dict(frames)),
        ("BMP", "RGB", {}),
        ("BMP", "P", {}),
        ("TIFF", "RGB", {"exif": exif}),
        ("TIFF", "F", {}),
        ("TIFF", "RGB", {"compression": "tiff_lzw"}),
        ("TIFF", "YCbCr", {"compression": "jpeg"}),
        ("TIFF", "1", {"compression": "group4"}),
        ("TIFF", "LAB", {}),
        ("TIFF", "RGBA", {"compression": "tiff_adobe_deflate"}),
    ]
    return [_encode(noise, *one) for one in made]


def _encode(noise: Image.Image, kind: str, mode: str, options: dict[str, object]) -> bytes:
    out = io.BytesIO()
    picture = noise.convert("RGB") if mode == "LAB" else noise.convert("RGB").convert(mode) if mode != "I;16" else noise
    if mode == "LAB":
        picture = Image.frombytes("LAB", noise.size, picture.tobytes())
    elif mode == "I;16":
        picture = noise.convert("I").convert("I;16")
    picture.save(out, kind, **options)
    return out.getvalue()


SEEDS = _seeds()
