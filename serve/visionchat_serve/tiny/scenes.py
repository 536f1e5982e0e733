"""Decides what is in a picture, without drawing it: things, text, bars, and what lies behind.

A scene is plain data in relative units (0 to 1 of width and height, radius of the short side), so that the
same scene can be drawn at any size and every question about it has its answer here.
"""

import math
import random
from dataclasses import dataclass

from visionchat_serve.tiny.backgrounds import Backdrop
from visionchat_serve.tiny.colours import is_legible, stands_out
from visionchat_serve.tiny.strings import random_string
from visionchat_serve.tiny.words import COLOURS, PLACES, SHAPES

SMALLEST_LETTER = 0.115  # height of a capital, of the side of a square as large as the picture
MARGIN = 0.05  # a thing whose centre is this near to a line between two places has no clear place


@dataclass(frozen=True, slots=True)
class Thing:
    shape: str
    colour: str
    x: float
    y: float
    radius: float  # of the picture's short side
    turn: float  # degrees

    @property
    def name(self) -> str:
        return f"{self.colour} {self.shape}"


@dataclass(frozen=True, slots=True)
class Line:
    """One string of characters around `x`, `y`; `height` is that of a capital, of the picture's height."""

    text: str
    colour: str
    font: str
    x: float
    y: float
    height: float
    turn: float


@dataclass(frozen=True, slots=True)
class Bar:
    colour: str
    x: float
    width: float
    height: float


@dataclass(frozen=True, slots=True)
class Scene:
    width: int
    height: int
    backdrop: Backdrop
    things: tuple[Thing, ...] = ()
    lines: tuple[Line, ...] = ()
    bars: tuple[Bar, ...] = ()
    seed: int = 0  # for the small accidents of drawing: shades, outlines, artefacts


@dataclass(frozen=True, slots=True)
class Source:
    """Where scenes draw from: training and evaluation differ in fonts, photographs and strings."""

    fonts: tuple[str, ...]
    held_out: bool


def random_backdrop(rng: random.Random, source: Source, named: bool = False) -> Backdrop:
    kind = rng.choices(("plain", "noise", "gradient", "texture", "photo"), (34, 20, 8, 16, 22))[0]
    if named and kind not in ("plain", "noise"):
        kind = "plain"
    colour = rng.choice((*COLOURS, "white", "white")) if kind in ("plain", "noise") else None
    wash = rng.choice((None, None, "white", "black")) if colour is None else None
    return Backdrop(kind, colour, wash, rng.getrandbits(30), source.held_out)


def fitting_colours(backdrop: Backdrop) -> list[str]:
    behind = backdrop.colour or backdrop.wash
    return [colour for colour in COLOURS if behind is None or stands_out(colour, behind)]


def ink_colours(backdrop: Backdrop) -> list[str]:
    behind = backdrop.colour or backdrop.wash
    return [colour for colour in COLOURS if behind is None or is_legible(colour, behind)]


def place_of(x: float, y: float) -> str | None:
    """The name of the ninth of the picture, or None near a border between two."""
    if any(abs(value - line) < MARGIN for value in (x, y) for line in (1 / 3, 2 / 3)):
        return None
    return PLACES[int(y * 3) * 3 + int(x * 3)]


def shapes_scene(rng: random.Random, source: Source, size: tuple[int, int], most: int = 5) -> Scene:
    """One to five things; small numbers are the more usual, and things are alike often enough to be counted."""
    count = rng.choices((0, 1, 2, 3, 4, 5), (2, 30, 32, 14, 11, 11))[0]
    backdrop = random_backdrop(rng, source)
    things = random_things(rng, size, backdrop, min(count, most))
    return Scene(*size, backdrop, things=things, seed=rng.getrandbits(30))


def random_things(rng: random.Random, size: tuple[int, int], backdrop: Backdrop, count: int) -> tuple[Thing, ...]:
    colours = rng.sample(fitting_colours(backdrop), min(len(fitting_colours(backdrop)), rng.choice((1, 2, 3, 8))))
    shapes = rng.sample(SHAPES, rng.choice((1, 2, 3, 6, 6)))
    things: list[Thing] = []
    largest = 0.34 if count < 2 else 0.26 if count < 4 else 0.2
    for _ in range(count):
        radius = math.exp(rng.uniform(math.log(0.07), math.log(largest)))
        spot = _free_spot(rng, size, things, radius)
        if spot:
            things.append(Thing(rng.choice(shapes), rng.choice(colours), *spot, rng.uniform(-1, 1)))
    return tuple(things)


def _free_spot(
    rng: random.Random, size: tuple[int, int], things: list[Thing], radius: float
) -> tuple[float, float, float] | None:
    """A place, equally often in each ninth, where a thing of this radius touches no other and no edge."""
    short = min(size)
    for attempt in range(40):
        if attempt % 10 == 9:
            radius = max(0.07, radius * 0.8)
        edge_x, edge_y = radius * 1.08 * short / size[0], radius * 1.08 * short / size[1]
        x, y = _in_a_third(rng, edge_x), _in_a_third(rng, edge_y)
        gaps = (math.hypot((x - t.x) * size[0], (y - t.y) * size[1]) / short - t.radius - radius for t in things)
        if all(gap > 0.03 for gap in gaps):
            return x, y, radius
    return None


def _in_a_third(rng: random.Random, edge: float) -> float:
    third = rng.randrange(3)
    low, high = max(edge, third / 3 + MARGIN), min(1 - edge, (third + 1) / 3 - MARGIN)
    if third == 0:
        low = edge
    if third == 2:
        high = 1 - edge
    return rng.uniform(low, high) if low < high else rng.uniform(edge, 1 - edge)


def text_scene(rng: random.Random, source: Source, size: tuple[int, int]) -> Scene:
    """One string, now and then with a thing beside it."""
    backdrop = random_backdrop(rng, source)
    colours = fitting_colours(backdrop)
    line = random_line(rng, source, size, rng.choice(ink_colours(backdrop)), rng.random())
    scene = Scene(*size, backdrop, lines=(line,), seed=rng.getrandbits(30))
    room = (1 - line.height * 1.8) / 2 > 0.3 and line.turn == 0
    if not room or rng.random() < 0.6:
        return scene
    top = rng.random() < 0.5
    y = 0.25 if top else 0.75
    moved = Line(line.text, line.colour, line.font, line.x, 1 - y, line.height, 0.0)
    radius = min(0.2, 0.2 * size[1] / min(size))
    thing = Thing(rng.choice(SHAPES), rng.choice(colours), rng.uniform(0.3, 0.7), y, radius, rng.uniform(-1, 1))
    return Scene(*size, backdrop, things=(thing,), lines=(moved,), seed=scene.seed)


def random_line(
    rng: random.Random, source: Source, size: tuple[int, int], colour: str, luck: float, long: bool = False
) -> Line:
    """A string as large as it can be read: smaller characters are not asked for."""
    width, height = size
    # of a capital, in pixels: about 18 of the 160 the model sees, and never fewer than a letter needs to be drawn
    smallest = max(SMALLEST_LETTER * math.sqrt(width * height), 9.0)
    longest = int(0.9 * width / (smallest * 1.05))
    wanted = rng.choices(range(1, 9), (20, 20, 20, 10, 9, 8, 7, 6))[0] if not long else rng.randint(4, 8)
    text = random_string(rng, max(1, min(wanted, longest)), source.held_out)
    widest = 0.9 * width / (len(text) * 1.0)  # a character is at most about as wide as a capital is high
    largest = max(smallest * 1.01, min(0.6 * height, widest))
    capital = smallest * (largest / smallest) ** luck
    half_width, half_height = len(text) * capital * 0.55 / width, capital * 0.9 / height
    x = rng.uniform(min(0.5, half_width + 0.02), max(0.5, 1 - half_width - 0.02))
    y = rng.uniform(min(0.5, half_height + 0.02), max(0.5, 1 - half_height - 0.02))
    turn = rng.uniform(-5, 5) if rng.random() < 0.15 else 0.0
    return Line(text, colour, rng.choice(source.fonts), x, y, capital / height, turn)


def bars_scene(rng: random.Random, source: Source, size: tuple[int, int]) -> Scene:
    """A bar chart of three to five colours, with heights that can be told apart."""
    backdrop = Backdrop("plain", rng.choice(("white", "white", "black")), None, rng.getrandbits(30), source.held_out)
    count = rng.randint(3, 5)
    colours = rng.sample(fitting_colours(backdrop), count)
    heights = rng.sample([0.18 + 0.11 * step for step in range(7)], count)
    step = 0.9 / count
    bars = (
        Bar(c, 0.05 + step * (i + 0.5), step * rng.uniform(0.5, 0.9), h)
        for i, (c, h) in enumerate(zip(colours, heights, strict=True))
    )
    return Scene(*size, backdrop, bars=tuple(bars), seed=rng.getrandbits(30))


def packed_scene(rng: random.Random, source: Source, size: tuple[int, int], easy: bool = False) -> Scene:
    """As many strings and things as fit: dense practice for the eyes, no questions are asked about it."""
    backdrop = random_backdrop(rng, source, named=easy)
    lines = _stack_of_lines(rng, source, size, ink_colours(backdrop), 0.35 if easy else 0.0)
    things = random_things(rng, size, backdrop, rng.randint(4, 7)) if not lines else ()
    return Scene(*size, backdrop, things=things, lines=lines, seed=rng.getrandbits(30))


def _stack_of_lines(
    rng: random.Random, source: Source, size: tuple[int, int], colours: list[str], least: float
) -> tuple[Line, ...]:
    """Lines of text from top to bottom; none in a tenth of the pictures."""
    lines: list[Line] = []
    y = rng.uniform(0.02, 0.1)
    while rng.random() > (0.1 if not lines else 0.02):
        line = random_line(rng, source, size, rng.choice(colours), rng.uniform(least, least + 0.5), rng.random() < 0.75)
        half = line.height * 0.95
        if y + 2 * half > 1:
            break
        lines.append(Line(line.text, line.colour, line.font, line.x, y + half, line.height, 0.0))
        y += 2 * half + rng.uniform(0.0, 0.05)
    return tuple(lines)
