"""The torch engine at full size: Qwen3-VL-2B's own dimensions, random weights, bfloat16 on disk.

The checkpoint is written once into the user's cache folder (4.3 GB), or taken from $VISIONCHAT_FULL_SIZE_CHECKPOINT.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.run import full_size_checkpoint
from visionchat_serve import cpu
from visionchat_serve.engines.torch_engine import TorchEngine
from visionchat_serve.messages import ImagePart, Message, TextPart

from .engine_tokens import library_tokens, our_tokens, request

TOKENS = 8
DISK_GB = MEMORY_GB = 8


def _available_memory_gb() -> float:
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")) / 1e6


@pytest.fixture(scope="module")
def engine() -> Iterator[TorchEngine]:
    if _available_memory_gb() < MEMORY_GB:
        pytest.skip(f"needs {MEMORY_GB} GB of free memory")
    if shutil.disk_usage(Path.home()).free < DISK_GB * 1e9:
        pytest.skip(f"needs {DISK_GB} GB of free disk")
    engine = TorchEngine(full_size_checkpoint(), dtype="bfloat16", threads=cpu.available_cpus().whole)
    yield engine
    engine.close()


@pytest.mark.parametrize("pictures", [0, 1])
def test_every_token_is_the_librarys(engine: TorchEngine, pictures: int, pictures_folder: Path) -> None:
    """Against `generate` over the same module, whose patch embedding is ours too: its sum is taken in another order
    than the library's convolution takes it, which moves one value in some thousands by one bit of bfloat16."""
    image = (pictures_folder / "circle-and-square.png").read_bytes()
    parts = (*(ImagePart(i) for i in range(pictures)), TextPart("Describe the picture."))
    ours, inputs = our_tokens(engine, request("full", Message("user", parts), (image,) * pictures, TOKENS))
    assert ours == library_tokens(engine._model, inputs, TOKENS)
    assert len(ours) == TOKENS
