"""Writes a checkpoint folder that looks exactly like Qwen/Qwen3-VL-2B-Instruct from the hub, in bfloat16.

The new folder is complete before it takes the old one's place, so that a server starting meanwhile never
reads half a model. Called by the training; `python -m visionchat_serve.tiny.export` writes untrained weights.
"""

import json
import os
import shutil
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer

from visionchat_serve.tiny import CHECKPOINT, layout
from visionchat_serve.tiny.network import build_config, build_network
from visionchat_serve.tiny.tokenizer import build_tokenizer, merges, vocabulary

CHAT_TEMPLATE = Path(__file__).with_name("chat_template.jinja")
TIED = "lm_head.weight"  # the same tensor as the embedding table, so it is not stored


def export(weights: dict[str, torch.Tensor], folder: Path = CHECKPOINT) -> None:
    fresh = folder.with_name(f".{folder.name}.new")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    write_texts(build_tokenizer(), fresh)
    half = {name: tensor.to(torch.bfloat16).contiguous() for name, tensor in weights.items() if name != TIED}
    save_file(half, fresh / "model.safetensors", metadata={"format": "pt"})
    (fresh / "model.safetensors").chmod(0o644)
    _replace(fresh, folder)


def write_texts(tokenizer: Tokenizer, folder: Path) -> None:
    template = CHAT_TEMPLATE.read_text()
    configs = {
        "config": layout.model_config(tokenizer),
        "generation_config": layout.generation_config(tokenizer),
        "preprocessor_config": layout.preprocessor_config(),
        "video_preprocessor_config": layout.video_preprocessor_config(),
        "tokenizer_config": layout.tokenizer_config(tokenizer, template),
        "vocab": vocabulary(),
    }
    for name, value in configs.items():
        (folder / f"{name}.json").write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n")
    (folder / "merges.txt").write_text("#version: 0.2\n" + "".join(f"{a} {b}\n" for a, b in merges()))
    (folder / "chat_template.jinja").write_text(template)
    tokenizer.save(str(folder / "tokenizer.json"))


def _replace(fresh: Path, folder: Path) -> None:
    """Swap file by file: each rename is atomic, and a reader that has the folder open keeps it."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in sorted(fresh.iterdir()):
        os.replace(path, folder / path.name)
    fresh.rmdir()


def main() -> int:
    export(build_network(build_config(build_tokenizer()), seed=0).state_dict())
    return 0


if __name__ == "__main__":
    sys.exit(main())
