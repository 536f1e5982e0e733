"""The tokens of one prompt by our engine and by transformers' own `generate`."""

from __future__ import annotations

from typing import Any

import torch

from visionchat_serve.engines.protocol import EngineRequest
from visionchat_serve.engines.torch_engine import TorchEngine
from visionchat_serve.messages import Message, SamplingParams


def request(name: str, message: Message, images: tuple[bytes, ...], tokens: int) -> EngineRequest:
    return EngineRequest(name, (message,), images, SamplingParams(max_tokens=tokens, temperature=0))


def our_tokens(engine: TorchEngine, request: EngineRequest) -> tuple[list[int], dict[str, Any]]:
    """The engine's tokens, and the same prompt as inputs for the library."""
    engine.add(request)
    run = engine._runs[request.id]
    inputs: dict[str, Any] = {"input_ids": run.ids[None], "attention_mask": torch.ones_like(run.ids)[None]}
    if request.images:
        kinds = (run.ids == engine._prompt.image_id).int()[None]
        pixels, grid = engine._vision.prepare(request.images)
        inputs |= {"pixel_values": pixels, "image_grid_thw": grid, "mm_token_type_ids": kinds}
    tokens = []
    while engine.has_work:
        engine.step()
        tokens.append(run.last)
    return tokens, inputs


@torch.inference_mode()
def library_tokens(model: Any, inputs: dict[str, Any], tokens: int) -> list[int]:
    out = model.generate(**inputs, max_new_tokens=tokens, do_sample=False)
    written: list[int] = out[0, inputs["input_ids"].shape[1] :].tolist()
    return written
