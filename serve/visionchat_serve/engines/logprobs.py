"""How likely the model found its tokens, in the form that goes out. Called only for requests that ask for it."""

from __future__ import annotations

from typing import Any

import torch

from visionchat_serve.messages import TokenLogprob


class Logprobs:
    """`tokenizer` is a byte-level BPE tokenizer of transformers, as Qwen's is."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._added = {index: token.content for index, token in tokenizer.added_tokens_decoder.items()}

    def of(self, logits: torch.Tensor, token: int, top: int) -> TokenLogprob:
        """The model's own distribution over its (vocabulary,) logits, before temperature, penalties and grammar."""
        values = logits.float().log_softmax(-1)
        best = values.topk(min(top, values.numel())) if top else None
        others = () if best is None else zip(best.indices.tolist(), best.values.tolist(), strict=True)
        return self._named(token, float(values[token]), tuple(self._named(i, value) for i, value in others))

    def _named(self, token: int, logprob: float, top: tuple[TokenLogprob, ...] = ()) -> TokenLogprob:
        data = self._bytes(token)
        return TokenLogprob(data.decode(errors="replace"), max(logprob, -9999.0), tuple(data), top)

    def _bytes(self, token: int) -> bytes:
        if token in self._added:
            return str(self._added[token]).encode()
        written: str | None = self._tokenizer.convert_ids_to_tokens(token)
        return bytes(_BYTES[character] for character in written or "")  # a padded vocabulary has nameless tokens


def _byte_alphabet() -> dict[str, int]:
    """Byte-level BPE writes every byte as a visible character: itself where it is one, else one from U+0100 on."""
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in visible]
    return {chr(byte): byte for byte in visible} | {chr(256 + i): byte for i, byte in enumerate(others)}


_BYTES = _byte_alphabet()
