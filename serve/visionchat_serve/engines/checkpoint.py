"""A Qwen3-VL checkpoint folder: what must be in it, and how it is loaded, offline and with little memory."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from visionchat_serve.errors import ConfigError

_NEEDED = ("config.json", "tokenizer.json", "preprocessor_config.json", "generation_config.json")
_WEIGHTS = ("model.safetensors", "model.safetensors.index.json")
ARCHITECTURE = "Qwen3VLForConditionalGeneration"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A loaded model (transformers, in eval mode) with its tokenizer and image processor."""

    model: Any
    tokenizer: Any
    image_processor: Any


def check_folder(path: Path) -> None:
    """Raise `ConfigError` naming what is missing. Cheap: reads config.json only."""
    if not path.is_dir():
        raise ConfigError(f"there is no model folder at {path}; use `tiny` or a folder with a Qwen3-VL checkpoint")
    missing = [name for name in _NEEDED if not (path / name).is_file()]
    if not any((path / name).is_file() for name in _WEIGHTS):
        missing.append(" or ".join(_WEIGHTS))
    if missing:
        raise ConfigError(f"the model folder {path} lacks {', '.join(missing)}")
    try:
        architectures = json.loads((path / "config.json").read_text()).get("architectures") or []
    except (ValueError, AttributeError) as error:
        raise ConfigError(f"{path / 'config.json'} is not a model configuration: {error}") from error
    if ARCHITECTURE not in architectures:
        raise ConfigError(f"the model in {path} is {architectures}, not {ARCHITECTURE}")


def load_checkpoint(path: Path, dtype: str) -> Checkpoint:
    """`dtype` is "auto", "float32" or "bfloat16"."""
    os.environ["HF_HUB_OFFLINE"] = "1"  # a folder is all that is ever read
    import torch
    from transformers import AutoTokenizer, Qwen3VLForConditionalGeneration
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    kind = getattr(torch, best_dtype(path) if dtype == "auto" else dtype)
    model: Any = Qwen3VLForConditionalGeneration.from_pretrained(
        path, dtype=kind, local_files_only=True, low_cpu_mem_usage=True, attn_implementation="sdpa"
    )
    tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=True)
    # The Pil variant needs no torchvision and reads the same preprocessor_config.json.
    images = Qwen2VLImageProcessorPil.from_pretrained(path, local_files_only=True)
    return Checkpoint(model.eval(), tokenizer, images)


def best_dtype(path: Path) -> str:
    """bfloat16 where the CPU multiplies it natively and the model is large enough to gain, else float32.

    Without AVX512-BF16 or AMX, bfloat16 is emulated and slower than float32 by a multiple.
    """
    hidden = json.loads((path / "config.json").read_text())["text_config"]["hidden_size"]
    return "bfloat16" if hidden >= 1024 and _has_bfloat16() else "float32"


def _has_bfloat16() -> bool:
    try:
        flags = Path("/proc/cpuinfo").read_text()
    except OSError:
        return False
    return "avx512_bf16" in flags or "amx_bf16" in flags


def revision_of(path: Path, numerics: str) -> str:
    """Twelve hex digits that change with the configuration, the weights or the way they are computed with."""
    digest = hashlib.sha256(numerics.encode())
    for file in sorted([*path.glob("*.json"), *path.glob("*.safetensors")]):
        digest.update(f"{file.name} {file.stat().st_size}".encode())
        with file.open("rb") as content:
            digest.update(content.read(1 << 20))
    return digest.hexdigest()[:12]
