"""Draws a scene with Pillow, and says where each character and thing came to lie.

Same scene, same pixels: all accidents come from the scene's own seed. Called by the training, the evaluation,
the tests and the command that makes the sample pictures.
"""

import io
import math
import random
from dataclasses import dataclass

from PIL import Image, ImageDraw

from visionchat_serve.tiny.backgrounds import paint
from visionchat_serve.tiny.colours import Rgb, shade
from visionchat_serve.tiny.fonts import load_font
from visionchat_serve.tiny.scenes import Bar, Line, Scene, Thing

Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Mark:
    """One character in the finished picture; `x` and `y` of its middle from 0 to 1."""

    character: str
    colour: str
    x: float
    y: float


def draw(scene: Scene) -> tuple[Image.Image, list[Mark]]:
    rng = random.Random(scene.seed)  # noqa: S311
    picture = paint(scene.backdrop, scene.width, scene.height)
    outlined = scene.backdrop.busy and (scene.backdrop.wash is None or rng.random() < 0.5)
    smooth = rng.random() < 0.7
    shades: dict[str, Rgb] = {}
    for thing in scene.things:
        colour = shades.setdefault(thing.colour, shade(thing.colour, rng))
        _draw_thing(picture, thing, colour, _outline(colour, outlined, rng), smooth)
    if scene.bars:
        _draw_bars(picture, scene.bars, scene.backdrop.colour, rng)
    marks = [mark for line in scene.lines for mark in _draw_line(picture, line, outlined, rng)]
    return picture, marks


def _outline(colour: Rgb, outlined: bool, rng: random.Random) -> Rgb | None:
    """On a photograph everything gets a rim that contrasts with it, or black on dark hair could not be told."""
    if not outlined:
        return None
    return (255, 255, 255) if sum(colour) < 330 else (0, 0, 0)


def _draw_thing(picture: Image.Image, thing: Thing, colour: Rgb, rim: Rgb | None, smooth: bool) -> None:
    radius = thing.radius * min(picture.size)
    center = (thing.x * picture.width, thing.y * picture.height)
    if not smooth:
        if rim:
            _fill(ImageDraw.Draw(picture), thing, center, radius, rim)
            radius *= 0.86
        _fill(ImageDraw.Draw(picture), thing, center, radius, colour)
        return
    left, top = math.floor(center[0] - radius) - 1, math.floor(center[1] - radius) - 1
    side = math.ceil(2 * radius) + 3
    fine = 3 if side < 400 else 1
    for fill, shrink in ((rim, 1.0), (colour, 0.86 if rim else 1.0)):
        if fill is not None:
            mask = Image.new("L", (side * fine, side * fine))
            middle = ((center[0] - left) * fine, (center[1] - top) * fine)
            _fill(ImageDraw.Draw(mask), thing, middle, radius * shrink * fine, 255)
            picture.paste(fill, (left, top), mask.reduce(fine) if fine > 1 else mask)


def _fill(canvas: ImageDraw.ImageDraw, thing: Thing, center: Point, radius: float, fill: Rgb | int) -> None:
    x, y = center
    if thing.shape == "circle":
        canvas.ellipse((x - radius, y - radius, x + radius, y + radius), fill=fill)
    else:
        canvas.polygon(outline_of(thing, center, radius), fill=fill)


def outline_of(thing: Thing, center: Point, radius: float) -> list[Point]:
    """Corners of a thing. How far each may be turned keeps a square a square and a diamond a diamond."""
    unit, most = _CORNERS[thing.shape]
    angle = math.radians(thing.turn * most)
    cos, sin = math.cos(angle) * radius, math.sin(angle) * radius
    return [(center[0] + u * cos - v * sin, center[1] + u * sin + v * cos) for u, v in unit]


def _star() -> list[Point]:
    spokes = ((1.0 if k % 2 == 0 else 0.42, math.pi * k / 5 - math.pi / 2) for k in range(10))
    return [(length * math.cos(angle), length * math.sin(angle)) for length, angle in spokes]


_ARM = 0.3
_CORNERS: dict[str, tuple[list[Point], float]] = {
    "square": ([(-0.8, -0.8), (0.8, -0.8), (0.8, 0.8), (-0.8, 0.8)], 8),
    "triangle": ([(0.0, -0.95), (0.9, 0.75), (-0.9, 0.75)], 12),
    "star": (_star(), 14),
    "diamond": ([(0.0, -1.0), (0.72, 0.0), (0.0, 1.0), (-0.72, 0.0)], 6),
    "cross": (
        [
            (-_ARM, -0.95), (_ARM, -0.95), (_ARM, -_ARM), (0.95, -_ARM), (0.95, _ARM), (_ARM, _ARM),
            (_ARM, 0.95), (-_ARM, 0.95), (-_ARM, _ARM), (-0.95, _ARM), (-0.95, -_ARM), (-_ARM, -_ARM),
        ],
        10,
    ),
}  # fmt: skip


def _draw_bars(picture: Image.Image, bars: tuple[Bar, ...], background: str | None, rng: random.Random) -> None:
    canvas = ImageDraw.Draw(picture)
    width, height = picture.size
    base = 0.94 * height
    for bar in bars:
        sides = (
            (bar.x - bar.width / 2) * width,
            base - bar.height * height,
            (bar.x + bar.width / 2) * width,
            base,
        )
        canvas.rectangle(sides, fill=shade(bar.colour, rng))
    axis = (255, 255, 255) if background == "black" else (0, 0, 0)
    if rng.random() < 0.7:
        canvas.line(
            (0.03 * width, base, 0.97 * width, base),
            fill=axis,
            width=max(1, round(0.008 * min(width, height))),
        )


def _draw_line(picture: Image.Image, line: Line, outlined: bool, rng: random.Random) -> list[Mark]:
    capital = line.height * picture.height
    font = load_font(line.font, max(6, round(capital / 0.72)))
    colour = shade(line.colour, rng)
    rim = _outline(colour, outlined, rng)
    stroke = max(1, round(capital / 14)) if rim else 0
    center = (line.x * picture.width, line.y * picture.height)
    left, top, right, bottom = font.getbbox(line.text, anchor="ls")
    # the middle of the real ink, moved inside where it would be cut off
    x = min(max(center[0], (right - left) / 2 + 2), picture.width - (right - left) / 2 - 2) - (left + right) / 2
    y = min(max(center[1], (bottom - top) / 2 + 2), picture.height - (bottom - top) / 2 - 2) - (top + bottom) / 2
    if line.turn:
        _draw_turned(picture, line, (x, y), font, colour, rim, stroke)
    else:
        canvas = ImageDraw.Draw(picture)
        canvas.text((x, y), line.text, fill=colour, font=font, anchor="ls", stroke_width=stroke, stroke_fill=rim)
    return _marks(line, font, x, y - capital / 2, picture.size)


def _draw_turned(
    picture: Image.Image, line: Line, start: Point, font: "object", colour: Rgb, rim: Rgb | None, stroke: int
) -> None:
    layer = Image.new("RGBA", picture.size, (*colour, 0))
    canvas = ImageDraw.Draw(layer)
    canvas.text(start, line.text, fill=(*colour, 255), font=font, anchor="ls", stroke_width=stroke, stroke_fill=rim)  # type: ignore[arg-type]
    center = (line.x * picture.width, line.y * picture.height)
    layer = layer.rotate(line.turn, Image.Resampling.BILINEAR, center=center)
    picture.paste(layer, (0, 0), layer)


def _marks(line: Line, font: "object", x: float, y: float, size: tuple[int, int]) -> list[Mark]:
    ends = [font.getlength(line.text[:count]) for count in range(len(line.text) + 1)]  # type: ignore[attr-defined]
    middles = ((ends[i] + ends[i + 1]) / 2 for i in range(len(line.text)))
    return [Mark(c, line.colour, (x + m) / size[0], y / size[1]) for c, m in zip(line.text, middles, strict=True)]


def compress(picture: Image.Image, quality: int) -> Image.Image:
    """The picture as it comes back from a JPEG file."""
    file = io.BytesIO()
    picture.save(file, "JPEG", quality=quality)
    return Image.open(file).convert("RGB")
