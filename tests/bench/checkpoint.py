"""Write a checkpoint of Qwen3-VL-2B-Instruct's full size with random weights, in the real one's layout.

    python tests/bench/checkpoint.py FOLDER [--seed N]

For loading, speed, memory and exactness; its words mean nothing. bfloat16 in two safetensors shards with an index,
about 4.3 GB, one shard in memory at a time. Every value is drawn on its own: repeated values would be merged by
some engines and make them look faster than they are. Sizes, names and special ids are Qwen/Qwen3-VL-2B-Instruct's;
the tokenizer is the tiny model's, filled up with made-up words.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
from pathlib import Path
from typing import Any

from visionchat_serve.tiny import CHECKPOINT

Shape = tuple[int, ...]

VOCABULARY = 151_936
FIRST_SPECIAL = 151_643  # <|endoftext|>; the others follow in the tiny model's order, which is the real one's
SHARD_BYTES = 2_500_000_000
TEXT = {
    "head_dim": 128,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "max_position_embeddings": 262_144,
    "num_attention_heads": 16,
    "num_hidden_layers": 28,
    "num_key_value_heads": 8,
    "rope_scaling": {"mrope_interleaved": True, "mrope_section": [24, 20, 20], "rope_type": "default"},
    "rope_theta": 5_000_000,
    "vocab_size": VOCABULARY,
}
VISION = {
    "deepstack_visual_indexes": [5, 11, 17],
    "depth": 24,
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_heads": 16,
    "num_position_embeddings": 2304,
    "out_hidden_size": 2048,
}
SIZE = {"longest_edge": 16_777_216, "shortest_edge": 65_536}  # pixels, as in the real preprocessor_config.json


def write_checkpoint(folder: Path, seed: int = 0) -> None:
    """Make `folder`; complete once its config.json is there, which is written last."""
    folder.mkdir(parents=True, exist_ok=True)
    shift = FIRST_SPECIAL - min(token["id"] for token in _json("tokenizer.json")["added_tokens"])
    config = _shifted(_json("config.json"), shift)
    config["text_config"] |= TEXT
    config["vision_config"] |= VISION
    _write_tokenizer(folder, shift)
    _write_json(folder / "generation_config.json", _shifted(_json("generation_config.json"), shift))
    _write_json(folder / "preprocessor_config.json", _json("preprocessor_config.json") | {"size": SIZE})
    _write_weights(folder, config, seed)
    _write_json(folder / "config.json", config)


def _shifted(content: dict[str, Any], shift: int) -> dict[str, Any]:
    """The same with all `*_token_id`s moved by `shift`."""

    def moved(key: str, value: Any) -> Any:
        if isinstance(value, dict):
            return _shifted(value, shift)
        if not key.endswith("_token_id"):
            return value
        return [one + shift for one in value] if isinstance(value, list) else value + shift

    return {key: moved(key, value) for key, value in content.items()}


def _json(name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((CHECKPOINT / name).read_text())
    return content


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2))


def _write_tokenizer(folder: Path, shift: int) -> None:
    for name in ("chat_template.jinja", "merges.txt"):
        shutil.copyfile(CHECKPOINT / name, folder / name)
    tokenizer, settings = _json("tokenizer.json"), _json("tokenizer_config.json")
    for token in tokenizer["added_tokens"]:
        token["id"] += shift
    by_id = settings["added_tokens_decoder"]
    settings["added_tokens_decoder"] = {str(int(number) + shift): token for number, token in by_id.items()}
    vocabulary = tokenizer["model"]["vocab"]
    vocabulary |= {f"Ġw{number}": number for number in range(len(vocabulary), FIRST_SPECIAL)}
    _write_json(folder / "tokenizer.json", tokenizer)
    _write_json(folder / "tokenizer_config.json", settings)
    _write_json(folder / "vocab.json", vocabulary)


def _write_weights(folder: Path, config: dict[str, Any], seed: int) -> None:
    import torch
    from safetensors.torch import save_file

    generator = torch.Generator().manual_seed(seed)
    shards = _shards(_shapes(config))
    weight_map = {}
    for number, shapes in enumerate(shards, start=1):
        name = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        tensors = {tensor: _random(tensor, shape, generator) for tensor, shape in shapes.items()}
        save_file(tensors, folder / name, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(shapes, name)
    total = sum(_bytes(shape) for shapes in shards for shape in shapes.values())
    _write_json(folder / "model.safetensors.index.json", {"metadata": {"total_size": total}, "weight_map": weight_map})


def _shards(shapes: dict[str, Shape]) -> list[dict[str, Shape]]:
    """The tensors in order, a new shard whenever one would grow over SHARD_BYTES."""
    shards: list[dict[str, Shape]] = [{}]
    for name, shape in shapes.items():
        if sum(map(_bytes, shards[-1].values())) + _bytes(shape) > SHARD_BYTES:
            shards.append({})
        shards[-1][name] = shape
    return shards


def _bytes(shape: Shape) -> int:
    return 2 * math.prod(shape)  # bfloat16


def _shapes(config: dict[str, Any]) -> dict[str, Shape]:
    """The model's own tensors, without making them; the head is tied to the embedding and not stored."""
    import torch
    from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

    with torch.device("meta"):
        model = Qwen3VLForConditionalGeneration(Qwen3VLConfig.from_dict(config))
    return {name: tuple(t.shape) for name, t in model.state_dict().items() if name != "lm_head.weight"}


def _random(name: str, shape: Shape, generator: Any) -> Any:
    """Norms near 1, the rest so small that activations neither vanish nor explode through the layers."""
    import torch

    centre, spread = (1.0, 0.05) if "norm" in name and name.endswith("weight") else (0.0, 0.02)
    return torch.empty(shape).normal_(centre, spread, generator=generator).to(torch.bfloat16)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    write_checkpoint(args.folder, args.seed)
    print(f"wrote {sum(f.stat().st_size for f in args.folder.iterdir()) / 1e9:.2f} GB to {args.folder}")
