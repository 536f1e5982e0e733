"""Which tokens may come next so that an answer keeps to a JSON Schema: llguidance's matcher as a rule for `sampling`.

Nothing of it is loaded until the first request asks for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from visionchat_serve.errors import InvalidRequest
from visionchat_serve.json_grammar import grammar_of


class Grammars:
    """Makes a `Grammar` for each request. `vocabulary` is the length of the model's logits, which may be padded;
    `eos` are the tokens that end an answer."""

    def __init__(self, tokenizer: Any, vocabulary: int, eos: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._vocabulary = vocabulary
        self._eos = list(eos)
        self._prepared: Any = None

    def start(self, schema: str) -> Grammar:
        """Raises `InvalidRequest` when the grammar is too large for this model's tokens."""
        from llguidance import LLMatcher

        matcher = LLMatcher(self._prepare(), grammar_of(schema), log_level=0)
        if matcher.is_error():
            reason = matcher.get_error().splitlines()[0][:300]
            raise InvalidRequest(f"response_format: the schema cannot be used: {reason}", param="response_format")
        return Grammar(matcher)

    def _prepare(self) -> Any:
        """The tokens in llguidance's form: a second's work for a large vocabulary, so it is kept."""
        if self._prepared is None:
            from llguidance.hf import from_tokenizer

            self._prepared = from_tokenizer(self._tokenizer, n_vocab=self._vocabulary, eos_token=self._eos)
        return self._prepared


class Grammar:
    """One answer's place in its grammar; a `sampling.Rule`."""

    def __init__(self, matcher: Any) -> None:
        self._matcher = matcher

    def apply(self, scores: torch.Tensor) -> torch.Tensor:
        """(vocabulary,) -> the same with -inf for what must not come. At the end only the end is allowed."""
        allowed = torch.frombuffer(bytearray(self._matcher.compute_logit_bias()), dtype=torch.uint8)
        return scores.masked_fill(allowed == 0, float("-inf"))

    def accept(self, token: int) -> None:
        """Go on with the token that was chosen."""
        self._matcher.consume_token(token)

    @property
    def failure(self) -> str | None:
        """Why the answer cannot go on (a limit of the matcher was met), None as long as it can."""
        return self._matcher.get_error().splitlines()[0][:300] if self._matcher.is_error() else None
