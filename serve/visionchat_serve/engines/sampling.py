"""The next token from the logits, as transformers' own logits processors define it.

Order: repetition penalty, temperature, top_k, top_p, then a draw; temperature 0 (or a model whose
`generation_config.json` does not sample) takes the most likely token. Same seed, same draws.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from visionchat_serve.messages import SamplingParams


@dataclass(frozen=True, slots=True)
class ModelDefaults:
    """What the checkpoint's generation_config.json says."""

    do_sample: bool = False
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    repetition_penalty: float = 1.0

    @classmethod
    def of(cls, config: Any) -> ModelDefaults:
        """From a transformers GenerationConfig; what it leaves open is off."""

        def given(name: str, otherwise: Any) -> Any:
            value = getattr(config, name, None)
            return otherwise if value is None else value

        return cls(
            do_sample=bool(given("do_sample", False)),
            temperature=float(given("temperature", 1.0)),
            top_p=float(given("top_p", 1.0)),
            top_k=int(given("top_k", 0)),
            repetition_penalty=float(given("repetition_penalty", 1.0)),
        )


class Sampler:
    """Chooses tokens for one request. `prompt` are the prompt's ids, which the repetition penalty counts too."""

    def __init__(self, params: SamplingParams, defaults: ModelDefaults, prompt: torch.Tensor) -> None:
        temperature = params.temperature
        if temperature is None:
            temperature = defaults.temperature if defaults.do_sample else 0.0
        self._temperature = temperature
        self._top_p = params.top_p if params.top_p is not None else defaults.top_p
        self._top_k = params.top_k if params.top_k is not None else defaults.top_k
        self._penalty = (
            params.repetition_penalty if params.repetition_penalty is not None else defaults.repetition_penalty
        )
        self._seen = prompt if self._penalty != 1.0 else None
        self._generator = torch.Generator()
        if params.seed is None:
            self._generator.seed()
        else:
            self._generator.manual_seed(params.seed)

    def choose(self, logits: torch.Tensor) -> int:
        """The next token id from the last position's logits, float tensor of shape (vocabulary,)."""
        scores = logits.float()
        if self._seen is not None:
            scores = _penalised(scores, self._seen, self._penalty)
        token = int(scores.argmax()) if self._temperature == 0 else self._draw(scores / self._temperature)
        if self._seen is not None:
            self._seen = torch.cat((self._seen, torch.tensor([token])))
        return token

    def _draw(self, scores: torch.Tensor) -> int:
        if 0 < self._top_k < scores.numel():
            kth = scores.topk(self._top_k).values[-1]
            scores = scores.masked_fill(scores < kth, float("-inf"))
        if self._top_p < 1.0:
            scores = _nucleus(scores, self._top_p)
        return int(torch.multinomial(scores.softmax(-1), 1, generator=self._generator))


def _penalised(scores: torch.Tensor, seen: torch.Tensor, penalty: float) -> torch.Tensor:
    picked = scores[seen]
    return scores.scatter(0, seen, torch.where(picked < 0, picked * penalty, picked / penalty))


def _nucleus(scores: torch.Tensor, top_p: float) -> torch.Tensor:
    """Keep the smallest set of tokens whose probability reaches `top_p`, at least one."""
    ascending, order = scores.sort(descending=False)
    drop = ascending.softmax(-1).cumsum(-1) <= 1 - top_p
    drop[-1] = False
    return scores.masked_fill(torch.zeros_like(drop).scatter(0, order, drop), float("-inf"))
