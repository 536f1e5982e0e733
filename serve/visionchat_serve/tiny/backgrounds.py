"""Backgrounds: plain, noisy, gradients, photograph-like textures and crops of real photographs.

Photographs come from sample pictures of Python packages; some are kept for the evaluation. Textures and
photographs are made once and then only cropped, flipped and tinted, as the drawing must keep up with the
training.
"""

import random
import warnings
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from PIL import Image, ImageOps

from visionchat_serve.tiny.colours import Rgb, shade
from visionchat_serve.tiny.fonts import package_file

TRAINING_PHOTOS = (
    ("skimage", "data/astronaut.png"), ("skimage", "data/brick.png"), ("skimage", "data/chelsea.png"),
    ("skimage", "data/grass.png"), ("skimage", "data/gravel.png"), ("skimage", "data/hubble_deep_field.jpg"),
    ("skimage", "data/ihc.png"), ("skimage", "data/motorcycle_left.png"), ("skimage", "data/retina.jpg"),
    ("skimage", "data/moon.png"), ("skimage", "data/coins.png"), ("sklearn", "datasets/images/china.jpg"),
    ("matplotlib", "mpl-data/sample_data/grace_hopper.jpg"),
)  # fmt: skip
HELD_OUT_PHOTOS = (
    ("skimage", "data/coffee.png"), ("skimage", "data/rocket.jpg"), ("skimage", "data/camera.png"),
    ("sklearn", "datasets/images/flower.jpg"),
)  # fmt: skip
TILE = 512


@dataclass(frozen=True, slots=True)
class Backdrop:
    """What lies behind the things: `colour` is its name where it has one, `wash` how far it is faded and to what."""

    kind: str  # plain, noise, gradient, texture, photo
    colour: str | None
    wash: str | None  # None, "white" or "black"
    seed: int
    held_out: bool

    @property
    def busy(self) -> bool:
        return self.colour is None


@lru_cache
def photos(held_out: bool) -> tuple[Image.Image, ...]:
    names = HELD_OUT_PHOTOS if held_out else TRAINING_PHOTOS
    paths = [path for package, name in names if (path := package_file(package, name))]
    if len(paths) < len(names):
        warnings.warn(f"only {len(paths)} of {len(names)} photographs are installed (extra `train`)", stacklevel=2)
    return tuple(_small_copy(Image.open(path).convert("RGB")) for path in paths) or textures(held_out)


def _small_copy(picture: Image.Image, longest: int = 700) -> Image.Image:
    picture.thumbnail((longest, longest))
    return picture


@lru_cache
def textures(held_out: bool) -> tuple[Image.Image, ...]:
    """Clouds of colour whose detail falls off with frequency as it does in photographs."""
    rng = np.random.default_rng(90_001 if held_out else 90_000)
    return tuple(_texture(rng, power) for power in rng.uniform(0.8, 2.0, 8 if held_out else 24))


def _texture(rng: np.random.Generator, power: float) -> Image.Image:
    frequency = np.hypot(np.fft.fftfreq(TILE)[:, None], np.fft.rfftfreq(TILE)[None, :])
    frequency[0, 0] = 1.0
    spectrum = np.fft.rfft2(rng.standard_normal((3, TILE, TILE))) / frequency**power
    clouds = np.fft.irfft2(spectrum)
    clouds = (clouds - clouds.mean((1, 2), keepdims=True)) / clouds.std((1, 2), keepdims=True)
    mixed = np.tensordot(np.eye(3) + rng.normal(0, 0.8, (3, 3)), clouds, 1)  # makes the three colours go together
    levels = rng.uniform(60, 190, 3)[:, None, None] + mixed * rng.uniform(15, 40)
    return Image.fromarray(np.clip(levels, 0, 255).transpose(1, 2, 0).astype(np.uint8))


@lru_cache
def _noise_tile() -> np.ndarray:
    return np.random.default_rng(90_002).standard_normal((TILE, TILE, 3)).astype(np.float32)


def paint(backdrop: Backdrop, width: int, height: int) -> Image.Image:
    rng = random.Random(backdrop.seed)  # noqa: S311
    if backdrop.colour is not None:
        base = Image.new("RGB", (width, height), shade(backdrop.colour, rng))
        return _add_noise(base, rng.uniform(4, 22), rng) if backdrop.kind == "noise" else base
    if backdrop.kind == "gradient":
        picture = _gradient(_any_rgb(rng), _any_rgb(rng), width, height, rng)
    else:
        pool = photos(backdrop.held_out) if backdrop.kind == "photo" else textures(backdrop.held_out)
        picture = _crop(rng.choice(pool), width, height, rng)
    if backdrop.wash:
        target = Image.new("RGB", (width, height), backdrop.wash)
        picture = Image.blend(picture, target, rng.uniform(0.55, 0.75))
    return picture


def _any_rgb(rng: random.Random) -> Rgb:
    return rng.randrange(256), rng.randrange(256), rng.randrange(256)


def _gradient(start: Rgb, end: Rgb, width: int, height: int, rng: random.Random) -> Image.Image:
    ramp = Image.linear_gradient("L") if rng.random() < 0.7 else Image.radial_gradient("L")
    mask = ramp.rotate(90 * rng.randrange(4)).resize((width, height), Image.Resampling.BILINEAR)
    return Image.composite(Image.new("RGB", (width, height), start), Image.new("RGB", (width, height), end), mask)


def _crop(source: Image.Image, width: int, height: int, rng: random.Random) -> Image.Image:
    """A random part of the source with the wanted aspect ratio, flipped and tinted at random."""
    fit = min(source.width / width, source.height / height)
    scale = fit * rng.uniform(0.4, 1.0)
    w, h = width * scale, height * scale
    left, top = rng.uniform(0, source.width - w), rng.uniform(0, source.height - h)
    box = (left, top, left + w, top + h)
    part = source.resize((width, height), Image.Resampling.BILINEAR, box=box)
    if rng.random() < 0.5:
        part = ImageOps.mirror(part)
    if rng.random() < 0.4:
        part = Image.blend(part, Image.new("RGB", part.size, _any_rgb(rng)), rng.uniform(0.05, 0.3))
    return part


def _add_noise(picture: Image.Image, strength: float, rng: random.Random) -> Image.Image:
    tile, (top, left) = _noise_tile(), (rng.randrange(TILE), rng.randrange(TILE))
    rows = (np.arange(picture.height) + top) % TILE
    columns = (np.arange(picture.width) + left) % TILE
    noise = tile[rows[:, None], columns[None, :]] * strength
    return Image.fromarray(np.clip(np.asarray(picture, dtype=np.float32) + noise, 0, 255).astype(np.uint8))
