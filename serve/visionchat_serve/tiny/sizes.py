"""Picture sizes: which ones people send, and what the front door and the image processor make of them.

The two resizes are written again here in a few lines so that training pictures can be drawn near the size the
model will see; a test holds them equal to the library's. Pure arithmetic.
"""

import math
import random

from visionchat_serve.tiny.layout import CELL, MAX_PIXELS, MIN_PIXELS

SHORTEST_SIDE, LONGEST_SIDE = 64, 4000
DOOR_LONGEST = 512  # the front door shrinks the longest side to this ...
DOOR_SHORTEST = 64  # ... but never the short side below this, unless the area is still too large
MAX_CELLS = MAX_PIXELS // CELL**2


def random_size(rng: random.Random) -> tuple[int, int]:
    """Width and height: any scale equally likely, mostly ordinary aspect ratios, some extreme ones."""
    longest = math.exp(rng.uniform(math.log(SHORTEST_SIDE), math.log(LONGEST_SIDE)))
    ratio = math.exp(rng.uniform(0, math.log(2)) if rng.random() < 0.85 else rng.uniform(math.log(2), math.log(8)))
    if rng.random() < 0.15:
        ratio = 1.0
    shortest = max(SHORTEST_SIDE, round(longest / ratio))
    longest = max(shortest, min(LONGEST_SIDE, round(longest)))
    return (longest, shortest) if rng.random() < 0.6 else (shortest, longest)


def door_size(width: int, height: int) -> tuple[int, int]:
    """Size after the front door, which only ever shrinks."""
    scale = min(1.0, DOOR_LONGEST / max(width, height))
    if min(width, height) * scale < DOOR_SHORTEST:
        scale = min(1.0, DOOR_SHORTEST / min(width, height))
        if width * height * scale * scale > DOOR_LONGEST**2:
            scale = DOOR_LONGEST / math.sqrt(width * height)
    return max(1, round(width * scale)), max(1, round(height * scale))


def grid_of(width: int, height: int) -> tuple[int, int]:
    """Rows and columns of cells that the image processor resizes a picture of this size to."""
    rows, columns = round(height / CELL), round(width / CELL)
    area = rows * columns * CELL * CELL
    if area > MAX_PIXELS:
        shrink = math.sqrt(height * width / MAX_PIXELS) * CELL
        return max(1, math.floor(height / shrink)), max(1, math.floor(width / shrink))
    if area < MIN_PIXELS:
        grow = math.sqrt(MIN_PIXELS / (height * width)) / CELL
        return math.ceil(height * grow), math.ceil(width * grow)
    return rows, columns


def training_size(rng: random.Random, largest_area: int = 60_000) -> tuple[int, int]:
    """A random size as it leaves the front door, shrunk further where more pixels could not be seen anyway."""
    while True:
        width, height = door_size(*random_size(rng))
        rows, columns = grid_of(width, height)
        if rows * columns <= MAX_CELLS:
            break
    scale = min(1.0, math.sqrt(largest_area / (width * height)))
    return max(CELL, round(width * scale)), max(CELL, round(height * scale))
