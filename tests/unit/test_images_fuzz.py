"""Damaged files of every format: whatever Pillow raises, only our errors leave the door, and memory stays small."""

from __future__ import annotations

import io
import os
import resource
import warnings
from math import sqrt

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from support.picture_seeds import SEEDS
from visionchat_serve.errors import ImageError
from visionchat_serve.image_pixels import MAX_ASPECT, fit
from visionchat_serve.images import ImageLimits, decode_data_url, normalise

EXAMPLES = int(os.environ.get("VISIONCHAT_FUZZ_EXAMPLES", "300"))
LIMITS = ImageLimits(max_pixels=500_000)


# (place as a share of the file, bytes to cut out, bytes to put in); headers, where most decisions are, come often
EDITS = st.tuples(
    st.floats(0, 1).map(lambda share: share**2),
    st.integers(0, 6),
    st.one_of(st.binary(max_size=6), st.sampled_from([b"\xff\xff\xff\xff", b"\0\0\0\0", b"\x7f\xff", b"\x80\0\0\0"])),
)


def edited(data: bytes, edits: list[tuple[float, int, bytes]]) -> bytes:
    for share, cut, put in edits:
        at = 4 + int(share * max(0, len(data) - 4))  # the magic stays, else there is nothing to decode
        data = data[:at] + put + data[at + cut :]
    return data


@settings(max_examples=EXAMPLES, deadline=None, derandomize=EXAMPLES <= 300, suppress_health_check=list(HealthCheck))
@given(st.sampled_from(SEEDS), st.lists(EDITS, max_size=5), st.sampled_from(["low", "auto", "high"]))
def test_only_our_errors_leave(seed: bytes, edits: list[tuple[float, int, bytes]], detail: str) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow warns of damaged EXIF
        try:
            image = normalise(edited(seed, edits), detail=detail, limits=LIMITS)  # type: ignore[arg-type]
        except ImageError:
            pass  # every class of that tree is a 4xx
        else:
            assert image.width * image.height <= 500_000
            assert Image.open(io.BytesIO(image.data)).size == (image.width, image.height)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 100_000, "kilobytes for a picture of at most half a megapixel"


def test_the_seeds_themselves_are_served() -> None:
    for seed in SEEDS:
        assert {normalise(seed).width, normalise(seed).height} == {24, 16}


@settings(max_examples=100, deadline=None, derandomize=True)
@given(
    st.text(max_size=40) | st.text(max_size=40).map("data:image/png;base64,".__add__) | st.from_regex(r"data:[^,]*,.*")
)
def test_no_text_breaks_the_data_url_reader(url: str) -> None:
    try:
        data, declared = decode_data_url(url)
    except ImageError:
        return
    assert isinstance(data, bytes)
    assert declared is None or declared == declared.lower()


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.integers(1, 20_000), st.integers(1, 20_000), st.sampled_from([32, 256, 512, 1024]), st.sampled_from([16, 64]))
def test_fit_shrinks_within_the_budget(width: int, height: int, side: int, min_side: int) -> None:
    if max(width, height) > MAX_ASPECT * min(width, height):
        return
    w, h = fit(width, height, side, min_side)
    assert 1 <= w <= width
    assert 1 <= h <= height
    assert max(w, h) <= MAX_ASPECT * min(w, h), "the model would refuse it"
    assert (w - 0.5) * (h - 0.5) <= side * side
    if max(w, h) > side:  # only a thin picture may be longer, and no longer than it must be
        assert min(w, h) <= max(min_side, side / sqrt(width * height) * min(width, height) + 1)
    if max(width, height) <= side:
        assert (w, h) == (width, height)
    assert abs(min(w, h) - min(width, height) * max(w, h) / max(width, height)) <= 1, "proportions stay"
