"""Pictures as the text model sees them: Qwen3-VL's vision encoder, and what it said about earlier pictures.

Each picture is encoded by itself, so that its features are the same in whatever company it comes. Used by
`torch_engine`.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from PIL import Image
from torch import nn

from visionchat_serve.engines.least_recently_used import LeastRecentlyUsed
from visionchat_serve.errors import ImageUnreadable


@dataclass(frozen=True, slots=True)
class Features:
    """What the encoder says about a picture: (image tokens, hidden), and the same for each DeepStack layer."""

    tokens: torch.Tensor
    deepstack: tuple[torch.Tensor, ...]

    @property
    def bytes(self) -> int:
        return sum(tensor.nbytes for tensor in (self.tokens, *self.deepstack))


@dataclass(slots=True)
class Picture:
    """A picture of a prompt: `grid` (1, 3) is time, height and width in patches, `count` its image tokens.

    It has `features` already, or the `pixels` (patches, patch values) that they are made from.
    """

    digest: bytes
    grid: torch.Tensor
    count: int
    pixels: torch.Tensor | None = None
    features: Features | None = None


class Vision:
    """`model` is a transformers Qwen3VLForConditionalGeneration, `processor` its image processor; features are left
    in `kept`."""

    def __init__(self, model: Any, processor: Any, kept: LeastRecentlyUsed[Any]) -> None:
        self._encoder = model.model.visual
        self._encoder.patch_embed = LinearPatchEmbed(self._encoder.patch_embed)
        self._merge: int = model.config.vision_config.spatial_merge_size**2
        self._dtype: torch.dtype = self._encoder.patch_embed.weight.dtype
        self._processor = processor
        self._kept = kept

    def look(self, data: bytes, owner: str) -> Picture:
        """A PNG or JPEG, with its features if they were made for the same owner before. Raises `ImageUnreadable`."""
        digest = hashlib.sha256(owner.encode() + b"\0" + data).digest()
        known: tuple[torch.Tensor, Features] | None = self._kept.get(digest)
        if known is not None:
            grid, features = known
            return Picture(digest, grid, len(features.tokens), features=features)
        pixels, grid = self.prepare([data])
        return Picture(digest, grid, int(grid.prod()) // self._merge, pixels=pixels)

    def prepare(self, images: Sequence[bytes]) -> tuple[torch.Tensor, torch.Tensor]:
        """Patches of the pictures, one after the other, and their grids (pictures, 3)."""
        try:
            pictures = [Image.open(io.BytesIO(data)).convert("RGB") for data in images]
        except (OSError, ValueError, SyntaxError) as error:
            raise ImageUnreadable("a picture was damaged on its way to the model; send it again") from error
        prepared: Any = self._processor(images=pictures, return_tensors="pt")
        return prepared["pixel_values"], prepared["image_grid_thw"]

    def features(self, picture: Picture) -> Features:
        if picture.features is None:
            assert picture.pixels is not None
            made: Any = self._encoder(picture.pixels.to(self._dtype), grid_thw=picture.grid, return_dict=True)
            picture.features = Features(made.pooler_output, tuple(made.deepstack_features))
            picture.pixels = None
            self._kept.put(picture.digest, (picture.grid, picture.features), picture.features.bytes)
        return picture.features


class LinearPatchEmbed(nn.Module):
    """The patch embedding as one matrix product: kernel and stride of its Conv3d are the same, so the two are equal,
    and the convolution is many times slower on CPUs."""

    def __init__(self, convolution: Any) -> None:
        super().__init__()
        weight = convolution.proj.weight
        self.weight = nn.Parameter(weight.detach().reshape(weight.shape[0], -1), requires_grad=False)
        self.bias = convolution.proj.bias

    def forward(self, patches: torch.Tensor) -> torch.Tensor:
        """(patches, values) -> (patches, hidden)."""
        return nn.functional.linear(patches.to(self.weight.dtype), self.weight, self.bias)
