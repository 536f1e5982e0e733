"""From messages to the model's token ids, by the checkpoint's own chat template.

What people write is text and nothing else: special tokens that appear in it (`<|im_end|>`, `<|image_pad|>`, …) are
encoded as their letters, so that nobody can end a turn or smuggle in a picture by typing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from visionchat_serve.engines.prompt_parts import Marks
from visionchat_serve.messages import ImagePart, Message

IMAGE_PAD = "<|image_pad|>"


class ChatPrompt:
    """`tokenizer` is a transformers tokenizer with a chat template."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        special = sorted(tokenizer.added_tokens_encoder, key=len, reverse=True)
        self._special = re.compile("|".join(re.escape(token) for token in special))
        self.image_id: int = tokenizer.convert_tokens_to_ids(IMAGE_PAD)
        question, answer = (tuple(tokenizer.encode(f"<|im_start|>{role}\n")) for role in ("user", "assistant"))
        self.marks = Marks(self.image_id, question, answer)

    def ids(self, messages: Sequence[Message], image_tokens: Sequence[int]) -> list[int]:
        """Token ids, `image_tokens[i]` image placeholders for the picture with index i."""
        rendered, typed = self._render(messages)
        ids: list[int] = []
        for piece in re.split(r"(\ue000\d+\ue001)", rendered):
            if typed and re.fullmatch(r"\ue000\d+\ue001", piece):
                ids += self._tokenizer.encode(
                    typed[int(piece[1:-1])], add_special_tokens=False, split_special_tokens=True
                )
            elif piece:
                ids += self._tokenizer.encode(piece, add_special_tokens=False)
        order = [part.index for message in messages for part in message.parts if isinstance(part, ImagePart)]
        return self._with_images(ids, [image_tokens[index] for index in order])

    def _render(self, messages: Sequence[Message]) -> tuple[str, list[str]]:
        """The template's output; texts that hold a special token stand there as a mark and come separately."""
        typed: list[str] = []

        def safe(text: str) -> str:
            if not self._special.search(text) and "\ue000" not in text:
                return text
            typed.append(text)
            return f"\ue000{len(typed) - 1}\ue001"

        turns = [
            {
                "role": message.role,
                "content": [
                    {"type": "image"} if isinstance(part, ImagePart) else {"type": "text", "text": safe(part.text)}
                    for part in message.parts
                ],
            }
            for message in messages
        ]
        return self._tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True), typed

    def _with_images(self, ids: list[int], counts: list[int]) -> list[int]:
        expanded: list[int] = []
        left = iter(counts)
        for token in ids:
            expanded += [token] * next(left) if token == self.image_id else [token]
        return expanded
