"""Pictures drawn for tests, as PNG bytes or data: URLs."""

from __future__ import annotations

import base64
import io

from PIL import Image, ImageDraw


def shapes(number: int) -> bytes:
    """A red circle and a blue square, 512 x 384 pixels; another place for each of 24 numbers."""
    image = Image.new("RGB", (512, 384), "white")
    pen = ImageDraw.Draw(image)
    pen.ellipse((20 + 4 * number, 60, 190 + 4 * number, 230), fill="red")
    pen.rectangle((320, 40 + 7 * number, 460, 180 + 7 * number), fill="blue")
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def data_url(png: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(png).decode()
