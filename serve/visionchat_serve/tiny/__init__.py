"""The tiny vision-language model that ships with the product: same architecture as Qwen3-VL, a few MB, trained here.

Only the folder of the finished checkpoint is exposed, so that the server can import this without torch or
Pillow. `python -m visionchat_serve.tiny.train` makes the checkpoint, `python -m
visionchat_serve.tiny.evaluate` measures it.
"""

from pathlib import Path

CHECKPOINT: Path = Path(__file__).parent / "checkpoint"

__all__ = ["CHECKPOINT"]
