"""Damaged pictures in whole requests: each is answered with a 4xx of ours or served, and memory stays where it was.

300 in the unit tier, 10,000 by `make fuzz`. Every picture follows from its number, so a failure can be repeated.
"""

from __future__ import annotations

import base64
import io
import json
import os
import random
import resource
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from PIL import Image

from support.picture_seeds import SEEDS
from visionchat_serve.config import Settings
from visionchat_serve.errors import VisionChatError
from visionchat_serve.intake import parse, read_request
from visionchat_serve.schemas import ChatCompletionRequest

EXAMPLES = int(os.environ.get("VISIONCHAT_FUZZ_EXAMPLES", "300"))
SETTINGS = Settings(image_max_pixels=500_000, image_max_bytes=200_000)
FLAT_KB = 24_000  # what the allocator may keep over the whole run, however long
PEAK_KB = 100_000  # what one picture of half a megapixel may need while it is decoded
NUMBERS = (b"\0\0\0\0", b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\x80\0\0\0", b"\0\0\xff\xff", b"\xff\xff", b"\0\1")
MEDIA_TYPES = (*[""] * 12, "image/png", "image/jpeg", "text/html", "image/svg+xml")

Edit = Callable[[bytes, random.Random], bytes]


def flip(data: bytes, chance: random.Random) -> bytes:
    at = chance.randrange(len(data))
    return data[:at] + bytes([data[at] ^ (1 << chance.randrange(8))]) + data[at + 1 :]


def number(data: bytes, chance: random.Random) -> bytes:
    """Lengths and sizes become extreme; most of them stand near the beginning."""
    at = int(chance.random() ** 3 * len(data))
    new = chance.choice(NUMBERS)
    return data[:at] + new + data[at + len(new) :]


def cut(data: bytes, chance: random.Random) -> bytes:
    return data[: chance.randrange(len(data)) + 1]


def drop(data: bytes, chance: random.Random) -> bytes:
    at = chance.randrange(len(data))
    return data[:at] + data[at + chance.randrange(64) :]


def repeat(data: bytes, chance: random.Random) -> bytes:
    """A piece again and again: chunks, comments, frames."""
    at = chance.randrange(len(data))
    piece = data[at : at + chance.randrange(1, 200)]
    return data[:at] + piece * chance.choice((2, 10, 500)) + data[at:]


def noise(data: bytes, chance: random.Random) -> bytes:
    at = chance.randrange(len(data))
    return data[:at] + chance.randbytes(chance.randrange(200)) + data[at:]


def splice(data: bytes, chance: random.Random) -> bytes:
    other = chance.choice(SEEDS)
    return data[: chance.randrange(len(data)) + 1] + other[chance.randrange(len(other)) :]


EDITS: tuple[Edit, ...] = (flip, number, number, cut, drop, repeat, noise, splice)


def request(example: int) -> bytes:
    """The body of a request with one damaged picture, sometimes with a damaged data: URL around it."""
    chance = random.Random(example)
    whole = data = chance.choice(SEEDS)
    for _ in range(chance.randint(1, 4)):
        data = chance.choice(EDITS)(data, chance) or b"\0"
    if chance.random() < 0.9:  # else few would get past the first look at the format
        data = whole[:16] + data[16:]
    text = base64.b64encode(data).decode()
    if chance.random() < 0.1:
        text = chance.choice((text[:-1], text + "=", text.replace("A", " "), text[::-1], text.replace("+", "%2B")))
    picture = {"url": f"data:{chance.choice(MEDIA_TYPES)};base64,{text}", "detail": chance.choice(("low", "high"))}
    content = [{"type": "image_url", "image_url": picture}, {"type": "text", "text": "what?"}]
    return json.dumps({"model": "visionchat-tiny", "messages": [{"role": "user", "content": content}]}).encode()


def outcome(example: int) -> str:
    """ "served", or the code of our error; anything else that is raised fails the test."""
    refused: VisionChatError | None = None
    try:
        asked, _ = parse(request(example), SETTINGS, ChatCompletionRequest)
        _, (image,) = read_request(asked, SETTINGS, {})
    except VisionChatError as error:
        refused = error
    if refused is not None:
        assert 400 <= refused.status < 500, f"example {example}: {refused!r}"
        assert refused.param == "messages.0.content.0.image_url", f"example {example}: {refused!r}"
        return refused.code
    with Image.open(io.BytesIO(image)) as picture:
        assert picture.format in ("PNG", "JPEG")
        assert picture.width * picture.height <= SETTINGS.image_max_pixels
    return "served"


def resident_kb() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() // 1024


def test_damaged_pictures_get_our_errors_and_leave_nothing_in_memory() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow warns of damaged EXIF
        outcomes = Counter(outcome(example) for example in range(100))  # by now all that is loaded once is there
        before, peak_before = resident_kb(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        outcomes.update(outcome(example) for example in range(100, EXAMPLES))
    grown, peak = resident_kb() - before, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak_before
    assert grown < FLAT_KB, f"{grown} kB more after {EXAMPLES} pictures: {outcomes}"
    assert peak < PEAK_KB, f"{peak} kB more at the highest"
    assert {"served", "image_unreadable", "unsupported_image_type"} <= set(outcomes), "the damage is of every degree"
