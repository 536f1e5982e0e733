"""Asks the exported checkpoint about pictures the way any user of transformers would: the reference for our engines.

Picture bytes, front door, the library's image processor, chat template, greedy `generate`. No torchvision is
needed, as the processor is put together from its parts.
"""

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image, ImageOps
from transformers import AutoTokenizer, Qwen3VLForConditionalGeneration
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from visionchat_serve.tiny.sizes import door_size

Message = dict[str, Any]  # a turn of chat; a picture in it is {"type": "image", "image": bytes}
IMAGE_PAD = "<|image_pad|>"


def through_the_door(data: bytes) -> Image.Image:
    """The picture as the front door lets it in: upright, RGB, no larger than needed."""
    picture = ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGB")
    size = door_size(*picture.size)
    return picture if size == picture.size else picture.resize(size, Image.Resampling.LANCZOS)


@dataclass(frozen=True, slots=True)
class Reader:
    model: Qwen3VLForConditionalGeneration
    tokenizer: Any
    processor: Qwen2VLImageProcessorPil

    @classmethod
    def load(cls, folder: Path, dtype: torch.dtype = torch.float32) -> "Reader":
        model = Qwen3VLForConditionalGeneration.from_pretrained(folder, dtype=dtype)
        return cls(model, AutoTokenizer.from_pretrained(folder), Qwen2VLImageProcessorPil.from_pretrained(folder))

    @torch.inference_mode()
    def answer(self, messages: Sequence[Message], max_new_tokens: int = 48) -> str:
        seen = self.processor(images=[through_the_door(data) for data in pictures_of(messages)], return_tensors="pt")
        text = self.tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True)
        for cells in (seen["image_grid_thw"].prod(-1) // self.processor.merge_size**2).tolist():
            text = text.replace(IMAGE_PAD, "<|seen|>" * cells, 1)
        text = text.replace("<|seen|>", IMAGE_PAD)
        inputs = self.tokenizer(text, return_tensors="pt")
        kinds = (inputs["input_ids"] == self.model.config.image_token_id).int()
        self.model.model.rope_deltas = None
        output = self.model.generate(**inputs, **seen, mm_token_type_ids=kinds, max_new_tokens=max_new_tokens)
        return str(self.tokenizer.decode(output[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True))


def pictures_of(messages: Sequence[Message]) -> list[bytes]:
    parts = (part for message in messages if not isinstance(message["content"], str) for part in message["content"])
    return [part["image"] for part in parts if part["type"] == "image"]


def user_turn(text: str, pictures: Sequence[bytes] = (), text_first: bool = False) -> Message:
    shown: list[Message] = [{"type": "image", "image": data} for data in pictures]
    said: list[Message] = [{"type": "text", "text": text}]
    return {"role": "user", "content": said + shown if text_first else shown + said}
