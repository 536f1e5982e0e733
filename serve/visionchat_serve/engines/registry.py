"""Engines by name, imported only when chosen."""

from __future__ import annotations

from pathlib import Path

from visionchat_serve.config import TINY
from visionchat_serve.engines.checkpoint import check_folder
from visionchat_serve.engines.protocol import Engine
from visionchat_serve.errors import ConfigError


def model_folder(model: str) -> Path:
    """`tiny` is the one that ships with the product; anything else is a folder."""
    if model == TINY:
        from visionchat_serve.tiny import CHECKPOINT

        return CHECKPOINT
    return Path(model)


def check_checkpoint(model: str) -> None:
    """Raise `ConfigError` when `model` is not something an engine can load."""
    check_folder(model_folder(model))


def load_engine(name: str, model: str, *, dtype: str, threads: int, max_context: int, keep_bytes: int = 0) -> Engine:
    """A loaded engine, not yet warm; it keeps up to `keep_bytes` of what it computed for earlier requests. Raises
    `ConfigError`."""
    check_checkpoint(model)
    if name == "torch":
        from visionchat_serve.engines.torch_engine import TorchEngine

        return TorchEngine(
            model_folder(model), dtype=dtype, threads=threads, max_context=max_context, keep_bytes=keep_bytes
        )
    raise ConfigError(f"there is no engine {name!r}; use torch")
