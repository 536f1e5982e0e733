"""Turns the eight colour names into ever different shades that stay clearly that colour."""

import colorsys
import random

Rgb = tuple[int, int, int]

# hue in degrees, saturation, value: ranges with gaps between neighbours, so that every question has one right answer
RANGES: dict[str, tuple[tuple[float, float], tuple[float, float], tuple[float, float]]] = {
    "red": ((-8, 5), (0.82, 1.0), (0.72, 1.0)),
    "orange": ((25, 36), (0.88, 1.0), (0.95, 1.0)),
    "yellow": ((53, 60), (0.8, 1.0), (0.92, 1.0)),
    "green": ((100, 145), (0.6, 1.0), (0.45, 0.85)),
    "blue": ((212, 240), (0.75, 1.0), (0.65, 1.0)),
    "purple": ((276, 300), (0.55, 1.0), (0.45, 0.8)),
    "black": ((0, 360), (0.0, 0.3), (0.0, 0.12)),
    "white": ((0, 360), (0.0, 0.03), (0.94, 1.0)),
}
PURE: dict[str, Rgb] = {
    "red": (255, 0, 0), "green": (0, 128, 0), "blue": (0, 0, 255), "yellow": (255, 255, 0), "orange": (255, 165, 0),
    "purple": (128, 0, 128), "black": (0, 0, 0), "white": (255, 255, 255),
}  # fmt: skip
TOO_CLOSE = (
    {"red", "orange"},
    {"orange", "yellow"},
    {"blue", "purple"},
    {"yellow", "white"},
    {"black", "purple"},
)


def shade(name: str, rng: random.Random) -> Rgb:
    """A random shade; sometimes exactly the colour that the web gives this name."""
    if rng.random() < 0.2:
        return PURE[name]
    hue, saturation, value = (rng.uniform(*limits) for limits in RANGES[name])
    red, green, blue = colorsys.hsv_to_rgb((hue % 360) / 360, saturation, value)
    return round(red * 255), round(green * 255), round(blue * 255)


def stands_out(colour: str, background: str) -> bool:
    """Whether a thing of this colour is plainly seen on a plain background of that one."""
    return colour != background and {colour, background} not in TOO_CLOSE


LIGHT, MIDDLE = {"white", "yellow", "orange"}, {"red", "green"}


def is_legible(colour: str, background: str) -> bool:
    """Letters are thin, so they need a difference in lightness too."""

    def level(name: str) -> int:
        return 3 if name in LIGHT else 1 if name in MIDDLE else 0

    return stands_out(colour, background) and abs(level(colour) - level(background)) >= (
        1 if "black" in (colour, background) else 2
    )
