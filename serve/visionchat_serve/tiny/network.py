"""Builds the tiny `Qwen3VLForConditionalGeneration` with weights that train well from scratch.

The model is the library's own class: what is trained here is loaded by the same code as the real Qwen3-VL.
Called by the training and the export.
"""

import math
from pathlib import Path

import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

from visionchat_serve.tiny.layout import model_config


def build_config(tokenizer: Tokenizer) -> Qwen3VLConfig:
    raw = model_config(tokenizer)
    for part in ("text_config", "vision_config"):
        raw[part] = dict(raw[part])
    raw["vision_config"]["model_type"] = "qwen3_vl_vision"
    return Qwen3VLConfig(**raw)


def build_network(config: Qwen3VLConfig, seed: int) -> Qwen3VLForConditionalGeneration:
    torch.manual_seed(seed)
    model = Qwen3VLForConditionalGeneration(config)
    torch.nn.Module.float(model)  # the configuration says bfloat16, which is for running, not for training
    with torch.no_grad():
        _start_positions(model.model.visual.pos_embed.weight)
        _start_linears(model)
    return model


def _start_positions(table: torch.Tensor) -> None:
    """A sinusoidal table of amplitude one: with the library's weak random start, place was not learnt at all."""
    count, width = table.shape
    side = int(math.sqrt(count))
    quarter = width // 4
    frequencies = torch.exp(-torch.arange(quarter) / quarter * math.log(2.0 * side)) * math.pi
    angles = torch.arange(side)[:, None] * frequencies[None, :]
    waves = torch.cat([angles.sin(), angles.cos()], dim=1)
    rows = waves[:, None, :].expand(side, side, 2 * quarter)
    columns = waves[None, :, :].expand(side, side, 2 * quarter)
    table.copy_(torch.cat([rows, columns], dim=-1).reshape(count, width) * 0.7)


def _start_linears(model: torch.nn.Module) -> None:
    """Weights scaled by their fan-in: the library's 0.02 fits models ten times as wide."""
    for module in model.modules():
        if isinstance(module, torch.nn.Linear):
            module.weight.normal_(0.0, 0.7 / math.sqrt(module.in_features))
        elif isinstance(module, torch.nn.Conv3d):
            module.weight.normal_(0.0, 1.0 / math.sqrt(module.weight[0].numel()))


def load_weights(model: Qwen3VLForConditionalGeneration, folder: Path) -> None:
    """Takes over the weights of an exported checkpoint; the output table is the embedding table."""
    model.load_state_dict(load_file(folder / "model.safetensors"), strict=False)
