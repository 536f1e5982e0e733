"""The training forward pass: the library's own weights, computed for whole batches at once.

The library loops over pictures and lets each conversation have a row of its own; here pictures are padded to
one size and rows are packed, which is several times faster on a CPU. A test holds the two equal. Attention is
written as two matrix products, whose backward pass is faster than the fused one at these sizes.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import Qwen3VLForConditionalGeneration
from transformers.vision_utils import get_vision_interpolation_indices_and_weights, get_vision_position_ids

from visionchat_serve.tiny.batches import PATCHES, Batch
from visionchat_serve.tiny.layout import MERGE
from visionchat_serve.tiny.sizes import MAX_CELLS

HIDDEN = -1e4  # added to the score of what must not be seen; finite, so that padding alone stays a number


@dataclass(frozen=True, slots=True)
class Seen:
    """What the vision tower made of the pictures: tokens for the language model, and for its first layers."""

    cells: Tensor  # [pictures, MAX_CELLS, width]
    deepstack: list[Tensor]
    patches: Tensor  # [pictures, PATCHES, width of the vision tower] before the cells are merged


@dataclass(frozen=True, slots=True)
class Understood:
    """Hidden states [rows, length, width] of the packed rows: ready for the output table, and after each layer."""

    hidden: Tensor
    layers: list[Tensor]


@lru_cache(maxsize=256)
def _grid_tables(rows: int, columns: int, side: int) -> tuple[Tensor, Tensor, Tensor]:
    """For one grid: each patch's row and column, and which learnt positions it blends; padded to PATCHES."""
    grid = torch.tensor([[1, rows * MERGE, columns * MERGE]])
    places = get_vision_position_ids(grid, MERGE).T
    indices, weights = get_vision_interpolation_indices_and_weights(
        grid, num_grid_per_side=side, mode="bilinear", align_corners=True, spatial_merge_size=MERGE
    )
    missing = PATCHES - places.shape[-1]
    return F.pad(places, (0, missing)), F.pad(indices, (0, 0, 0, missing)), F.pad(weights, (0, 0, 0, missing))


class Forward:
    """Compiled pieces around one model. It holds no weights of its own."""

    def __init__(self, model: Qwen3VLForConditionalGeneration, compiled: bool = True) -> None:
        self.visual, self.text = model.model.visual, model.model.language_model
        self.vision_block: Any = torch.compile(_vision_block, dynamic=False) if compiled else _vision_block
        self.text_layer: Any = torch.compile(_text_layer, dynamic=False) if compiled else _text_layer
        self.merge: Any = torch.compile(_merge, dynamic=False) if compiled else _merge

    def see(self, pixels: Tensor, grids: np.ndarray) -> Seen:
        """Runs the vision tower over `pixels` [pictures, PATCHES, values], uint8 as the pictures have them."""
        visual = self.visual
        tables = [_grid_tables(int(r), int(c), visual.num_grid_per_side) for r, c in grids]
        places, indices, weights = (torch.stack(part) for part in zip(*tables, strict=True))
        kernel = visual.patch_embed.proj.weight.sum(2).flatten(1)  # both frames show the same picture
        x = F.linear(pixels.float() / 127.5 - 1.0, kernel, visual.patch_embed.proj.bias)
        x = x + (visual.pos_embed(indices) * weights[..., None]).sum(2)
        cos, sin = self._vision_angles(places)
        lengths = torch.from_numpy(grids.prod(1) * MERGE * MERGE)
        bias = torch.where(torch.arange(PATCHES)[None] < lengths[:, None], 0.0, HIDDEN)[:, None, None, :]
        deepstack = []
        for number, block in enumerate(visual.blocks):
            x = self.vision_block(block, x, cos, sin, bias)
            if number in visual.deepstack_visual_indexes:
                merger = visual.deepstack_merger_list[list(visual.deepstack_visual_indexes).index(number)]
                deepstack.append(self.merge(merger, x, True))
        return Seen(self.merge(visual.merger, x, False), deepstack, x)

    def _vision_angles(self, places: Tensor) -> tuple[Tensor, Tensor]:
        """`places` is [pictures, 2, PATCHES]."""
        angles = places.float()[..., None] * self.visual.rotary_pos_emb.inv_freq
        both = torch.cat([angles[:, 0], angles[:, 1]], dim=-1)
        doubled = torch.cat([both, both], dim=-1)[:, None]
        return doubled.cos(), doubled.sin()

    def read(self, batch: Batch, seen: Seen) -> Understood:
        """Runs the language model over the packed rows."""
        text = self.text
        cells = torch.from_numpy(batch.cells)
        shows = (cells >= 0)[..., None]
        index = cells.clamp(min=0)
        x = text.embed_tokens(torch.from_numpy(batch.ids))
        x = torch.where(shows, seen.cells.flatten(0, 1)[index].to(x.dtype), x)
        extra = [torch.where(shows, level.flatten(0, 1)[index].to(x.dtype), 0.0) for level in seen.deepstack]
        cos, sin = text.rotary_emb(x, torch.from_numpy(batch.positions))
        bias = torch.where(visible(batch), 0.0, HIDDEN)[:, None]
        layers = []
        for number, layer in enumerate(text.layers):
            x = self.text_layer(layer, x, cos[:, None], sin[:, None], bias)
            if number < len(extra):
                x = x + extra[number]
            layers.append(x)
        return Understood(text.norm(x), layers)


def visible(batch: Batch) -> Tensor:
    """[rows, length, length]: a token sees earlier ones of its own segment and of the prompt it continues."""
    segments, parents = torch.from_numpy(batch.segments), torch.from_numpy(batch.parents)
    earlier = torch.ones(segments.shape[1], segments.shape[1], dtype=torch.bool).tril()
    same = segments[:, :, None] == segments[:, None, :]
    return earlier & (same | (parents[:, :, None] == segments[:, None, :]))


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    return x * cos + torch.cat((-x[..., half:], x[..., :half]), dim=-1) * sin


def _attend(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    shares = torch.softmax(scores.float() + bias, dim=-1).to(v.dtype)
    return (shares @ v).transpose(1, 2).flatten(2)


def _vision_block(block: Any, x: Tensor, cos: Tensor, sin: Tensor, bias: Tensor) -> Tensor:
    pictures, patches, _ = x.shape
    attention = block.attn
    split = attention.qkv(block.norm1(x)).view(pictures, patches, 3, attention.num_heads, -1)
    q, k, v = split.permute(2, 0, 3, 1, 4).unbind(0)
    x = x + attention.proj(_attend(_rotate(q, cos, sin).to(v.dtype), _rotate(k, cos, sin).to(v.dtype), v, bias))
    return torch.as_tensor(x + block.mlp(block.norm2(x)))


def _merge(merger: Any, x: Tensor, norm_after: bool) -> Tensor:
    joined = x.reshape(x.shape[0], MAX_CELLS, -1)
    joined = merger.norm(joined) if norm_after else merger.norm(x).reshape(joined.shape)
    return torch.as_tensor(merger.linear_fc2(merger.act_fn(merger.linear_fc1(joined))))


def _text_layer(layer: Any, x: Tensor, cos: Tensor, sin: Tensor, bias: Tensor) -> Tensor:
    attention = layer.self_attn
    shape = (*x.shape[:2], -1, attention.head_dim)
    h = layer.input_layernorm(x)
    q = attention.q_norm(attention.q_proj(h).view(shape)).transpose(1, 2)
    k = attention.k_norm(attention.k_proj(h).view(shape)).transpose(1, 2)
    v = attention.v_proj(h).view(shape).transpose(1, 2)
    groups = attention.num_key_value_groups
    q, k = _rotate(q, cos, sin).to(v.dtype), _rotate(k, cos, sin).to(v.dtype)
    attended = _attend(q, k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1), bias)
    x = x + attention.o_proj(attended)
    return torch.as_tensor(x + layer.mlp(layer.post_attention_layernorm(x)))
