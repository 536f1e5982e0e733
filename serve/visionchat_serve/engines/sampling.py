"""The next token from the logits, as transformers' own logits processors and OpenAI's penalties define it.

Order: the rules (repetition penalty, presence and frequency penalty, grammar), temperature, top_k, top_p, then a
draw; temperature 0 (or a model whose `generation_config.json` does not sample) takes the most likely token. What a
request does not ask for costs nothing. Same seed, same draws.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

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


class Rule(Protocol):
    """Changes the scores of the tokens by what was said before."""

    def apply(self, scores: torch.Tensor) -> torch.Tensor:
        """(vocabulary,) -> (vocabulary,); does not write into its argument."""

    def accept(self, token: int) -> None:
        """This token was chosen."""


class Sampler:
    """Chooses tokens for one request. `prompt` are the prompt's ids, which the repetition penalty counts too;
    `grammar` is the last rule, so that nothing can make up for what it forbids."""

    def __init__(
        self, params: SamplingParams, defaults: ModelDefaults, prompt: torch.Tensor, grammar: Rule | None = None
    ) -> None:
        temperature = params.temperature
        if temperature is None:
            temperature = defaults.temperature if defaults.do_sample else 0.0
        self._temperature = temperature
        self._top_p = params.top_p if params.top_p is not None else defaults.top_p
        self._top_k = params.top_k if params.top_k is not None else defaults.top_k
        repetition = params.repetition_penalty
        repetition = defaults.repetition_penalty if repetition is None else repetition
        self._rules: list[Rule] = []
        if repetition != 1.0:
            self._rules.append(RepetitionPenalty(prompt, repetition))
        if params.presence_penalty or params.frequency_penalty:
            self._rules.append(CountPenalty(params.presence_penalty, params.frequency_penalty))
        if grammar is not None:
            self._rules.append(grammar)
        self._generator = torch.Generator()
        if params.seed is None:
            self._generator.seed()
        else:
            self._generator.manual_seed(params.seed)

    def choose(self, logits: torch.Tensor) -> int:
        """The next token id from the last position's logits, float tensor of shape (vocabulary,)."""
        scores = logits.float()
        for rule in self._rules:
            scores = rule.apply(scores)
        token = int(scores.argmax()) if self._temperature == 0 else self._draw(scores / self._temperature)
        for rule in self._rules:
            rule.accept(token)
        return token

    def _draw(self, scores: torch.Tensor) -> int:
        if 0 < self._top_k < scores.numel():
            kth = scores.topk(self._top_k).values[-1]
            scores = scores.masked_fill(scores < kth, float("-inf"))
        if self._top_p < 1.0:
            scores = _nucleus(scores, self._top_p)
        return int(torch.multinomial(scores.softmax(-1), 1, generator=self._generator))


class RepetitionPenalty:
    """Every token of prompt and answer becomes less likely, however often it was there."""

    def __init__(self, prompt: torch.Tensor, penalty: float) -> None:
        self._seen = prompt
        self._penalty = penalty

    def apply(self, scores: torch.Tensor) -> torch.Tensor:
        picked = scores[self._seen]
        changed = torch.where(picked < 0, picked * self._penalty, picked / self._penalty)
        return scores.scatter(0, self._seen, changed)

    def accept(self, token: int) -> None:
        self._seen = torch.cat((self._seen, torch.tensor([token])))


class CountPenalty:
    """OpenAI's: a token of the answer loses `presence` once and `frequency` for each time it was written."""

    def __init__(self, presence: float, frequency: float) -> None:
        self._presence = presence
        self._frequency = frequency
        self._counts: dict[int, int] = {}

    def apply(self, scores: torch.Tensor) -> torch.Tensor:
        if not self._counts:
            return scores
        tokens = torch.tensor(list(self._counts))
        losses = torch.tensor([self._presence + self._frequency * count for count in self._counts.values()])
        return scores.scatter_add(0, tokens, -losses)

    def accept(self, token: int) -> None:
        self._counts[token] = self._counts.get(token, 0) + 1


def _nucleus(scores: torch.Tensor, top_p: float) -> torch.Tensor:
    """Keep the smallest set of tokens whose probability reaches `top_p`, at least one."""
    ascending, order = scores.sort(descending=False)
    drop = ascending.softmax(-1).cumsum(-1) <= 1 - top_p
    drop[-1] = False
    return scores.masked_fill(torch.zeros_like(drop).scatter(0, order, drop), float("-inf"))
