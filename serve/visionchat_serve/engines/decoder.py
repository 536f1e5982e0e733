"""Qwen3-VL's text model over a static key/value cache: the same weights as transformers' module, less around them.

`transformers` spends more time around the matrix products of one token than in them when a model is small; this
forward does only what the model needs, in the same order of operations, so that its tokens are the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn import functional as F


class KVCache:
    """Keys and values of one request, allocated once: (layers, kv heads, `length`, head dim) each."""

    def __init__(self, layers: int, heads: int, length: int, head_dim: int, dtype: torch.dtype) -> None:
        shape = (layers, heads, length, head_dim)
        self.keys = torch.empty(shape, dtype=dtype)
        self.values = torch.empty(shape, dtype=dtype)

    def copy(self, start: int, end: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of the tokens from `start` to before `end`."""
        return self.keys[:, :, start:end].clone(), self.values[:, :, start:end].clone()

    def write(self, start: int, copied: tuple[torch.Tensor, torch.Tensor]) -> None:
        """Put back what `copy` gave."""
        keys, values = copied
        end = start + keys.shape[2]
        self.keys[:, :, start:end], self.values[:, :, start:end] = keys, values


class Decoder:
    """Wraps `model`, a transformers Qwen3VLForConditionalGeneration."""

    def __init__(self, model: Any) -> None:
        text = model.model.language_model
        config = text.config
        self.head_dim: int = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        self.layers = len(text.layers)
        self.kv_heads: int = config.num_key_value_heads
        self.dtype: torch.dtype = text.embed_tokens.weight.dtype
        self._heads: int = config.num_attention_heads
        self._eps: float = config.rms_norm_eps
        self._rotary = text.rotary_emb
        self._embedding = text.embed_tokens.weight
        self._norm = text.norm.weight
        self._head = model.lm_head.weight
        self._weights = [_weights_of(layer) for layer in text.layers]

    def new_cache(self, length: int) -> KVCache:
        return KVCache(self.layers, self.kv_heads, length, self.head_dim, self.dtype)

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        """(tokens,) -> (tokens, hidden)."""
        return F.embedding(ids, self._embedding)

    def rotary(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosines and sines for M-RoPE positions (3, tokens): two tensors (tokens, head dim)."""
        cos, sin = self._rotary(self._embedding, positions[:, None, :])
        return cos[0], sin[0]

    def forward(
        self,
        hidden: torch.Tensor,
        rotary: tuple[torch.Tensor, torch.Tensor],
        cache: KVCache,
        start: int,
        visual: torch.Tensor | None = None,
        deepstack: Sequence[torch.Tensor] = (),
    ) -> torch.Tensor:
        """(tokens, hidden) -> the same after the last layer; keys and values go to `cache` from `start` on.

        What stands in `cache` before `start` is what these tokens follow. `visual` marks the picture positions (bool,
        tokens); `deepstack[i]` is added to them after layer i.
        """
        mask = _mask(hidden.shape[0], start)
        for number, weights in enumerate(self._weights):
            hidden = hidden + self._attend(hidden, weights, rotary, cache, number, start, mask)
            hidden = hidden + self._mlp(hidden, weights)
            if visual is not None and number < len(deepstack):
                hidden[visual] = hidden[visual] + deepstack[number].to(hidden.dtype)
        return hidden

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """(vocabulary,) for the token after the last of `hidden` (tokens, hidden)."""
        return F.linear(self._rms(hidden[-1:], self._norm), self._head)[0]

    def _attend(
        self,
        hidden: torch.Tensor,
        w: dict[str, torch.Tensor],
        rotary: tuple[torch.Tensor, torch.Tensor],
        cache: KVCache,
        layer: int,
        start: int,
        mask: torch.Tensor | None,
    ) -> torch.Tensor:
        count = hidden.shape[0]
        end = start + count
        normed = self._rms(hidden, w["input_norm"])
        q = self._rms(F.linear(normed, w["q"]).view(count, self._heads, self.head_dim), w["q_norm"]).transpose(0, 1)
        k = self._rms(F.linear(normed, w["k"]).view(count, self.kv_heads, self.head_dim), w["k_norm"]).transpose(0, 1)
        v = F.linear(normed, w["v"]).view(count, self.kv_heads, self.head_dim).transpose(0, 1)
        cache.keys[layer, :, start:end] = _rotated(k, rotary)
        cache.values[layer, :, start:end] = v
        attended = _attention(_rotated(q, rotary), cache.keys[layer, :, :end], cache.values[layer, :, :end], mask)
        return F.linear(attended.transpose(0, 1).reshape(count, -1), w["o"])

    def _mlp(self, hidden: torch.Tensor, w: dict[str, torch.Tensor]) -> torch.Tensor:
        normed = self._rms(hidden, w["post_norm"])
        return F.linear(F.silu(F.linear(normed, w["gate"])) * F.linear(normed, w["up"]), w["down"])

    def _rms(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self._eps)
        return weight * normed.to(x.dtype)


def _weights_of(layer: Any) -> dict[str, torch.Tensor]:
    attention, mlp = layer.self_attn, layer.mlp
    return {
        "input_norm": layer.input_layernorm.weight,
        "post_norm": layer.post_attention_layernorm.weight,
        "q": attention.q_proj.weight,
        "k": attention.k_proj.weight,
        "v": attention.v_proj.weight,
        "o": attention.o_proj.weight,
        "q_norm": attention.q_norm.weight,
        "k_norm": attention.k_norm.weight,
        "gate": mlp.gate_proj.weight,
        "up": mlp.up_proj.weight,
        "down": mlp.down_proj.weight,
    }


def _mask(count: int, start: int) -> torch.Tensor | None:
    """Who may look at whom (count, start + count), for `count` tokens behind `start` others. None where the kernel
    knows by itself: a beginning, and a single token."""
    if start == 0 or count == 1:
        return None
    return torch.ones(count, start + count, dtype=torch.bool).tril(start)


def _attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    """Causal attention: q (heads, tokens, head dim), k and v (kv heads, tokens so far, head dim), result like q."""
    heads, count, width = q.shape
    if count > 1 or q.dtype is not torch.float32:
        attended = F.scaled_dot_product_attention(
            q[None],
            k[None],
            v[None],
            attn_mask=mask,
            is_causal=count > 1 and mask is None,
            enable_gqa=heads != k.shape[0],
        )
        return attended[0]
    # One token: the fused kernel would open a parallel region to wait for, for microseconds of work. (In half
    # precision it stays: it keeps the scores in full precision, which two matrix products would not.)
    scores = q.view(k.shape[0], -1, width) @ k.transpose(1, 2) * width**-0.5
    return (torch.softmax(scores, dim=-1) @ v).view(heads, 1, width)


def _rotated(x: torch.Tensor, rotary: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    cos, sin = rotary
    half = x.shape[-1] // 2
    return x * cos + torch.cat((-x[..., half:], x[..., :half]), dim=-1) * sin
