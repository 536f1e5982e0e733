"""The next token, held against transformers' own logits processors."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from visionchat_serve.engines.sampling import ModelDefaults, Sampler, _nucleus, _penalised
from visionchat_serve.messages import SamplingParams

NO_PROMPT = torch.tensor([], dtype=torch.long)


def sampler(prompt: torch.Tensor = NO_PROMPT, defaults: ModelDefaults | None = None, **params: float) -> Sampler:
    return Sampler(SamplingParams(**params), defaults or ModelDefaults(), prompt)  # type: ignore[arg-type]


def logits(seed: int, size: int = 50) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed)) * 3


def test_temperature_zero_takes_the_most_likely() -> None:
    for seed in range(20):
        assert sampler(temperature=0).choose(logits(seed)) == int(logits(seed).argmax())


def test_what_is_not_asked_for_is_as_the_model_says() -> None:
    greedy, sampled = ModelDefaults(), ModelDefaults(do_sample=True, temperature=5.0)
    assert {sampler(defaults=greedy, seed=s).choose(logits(1)) for s in range(20)} == {int(logits(1).argmax())}
    assert len({sampler(defaults=sampled, seed=s).choose(logits(1)) for s in range(20)}) > 3
    assert {sampler(defaults=sampled, seed=s, temperature=0).choose(logits(1)) for s in range(20)} == {
        int(logits(1).argmax())
    }


def test_the_same_seed_gives_the_same_answer_and_another_another() -> None:
    def draws(seed: int) -> list[int]:
        one = sampler(temperature=2.0, seed=seed)
        return [one.choose(logits(n)) for n in range(30)]

    assert draws(7) == draws(7)
    assert draws(7) != draws(8)


@given(st.integers(0, 10_000), st.floats(0.5, 2.0), st.lists(st.integers(0, 49), max_size=10))
@settings(max_examples=50, deadline=None)
def test_the_repetition_penalty_is_the_librarys(seed: int, penalty: float, seen: list[int]) -> None:
    from transformers.generation.logits_process import RepetitionPenaltyLogitsProcessor

    prompt = torch.tensor(seen, dtype=torch.long)
    ours = _penalised(logits(seed), prompt, penalty)
    theirs = RepetitionPenaltyLogitsProcessor(penalty)(prompt[None], logits(seed)[None].clone())[0]
    assert torch.equal(ours, theirs)


@given(st.integers(0, 10_000), st.floats(0.01, 0.99))
@settings(max_examples=50, deadline=None)
def test_top_p_keeps_what_the_library_keeps(seed: int, top_p: float) -> None:
    from transformers.generation.logits_process import TopPLogitsWarper

    theirs = TopPLogitsWarper(top_p)(NO_PROMPT[None], logits(seed)[None].clone())[0]
    assert torch.equal(_nucleus(logits(seed), top_p), theirs)


def test_top_k_draws_only_from_the_best() -> None:
    best = set(logits(3).topk(4).indices.tolist())
    drawn = {sampler(temperature=10.0, top_k=4, seed=s).choose(logits(3)) for s in range(100)}
    assert drawn == best


def test_top_p_always_leaves_one() -> None:
    assert sampler(temperature=1.0, top_p=1e-9, seed=1).choose(logits(4)) == int(logits(4).argmax())


@pytest.mark.parametrize("penalty", [1e6])
def test_the_penalty_counts_the_prompt_and_what_was_written(penalty: float) -> None:
    best, second, third = logits(5).topk(3).indices.tolist()
    one = sampler(torch.tensor([best]), temperature=0, repetition_penalty=penalty)
    assert [one.choose(logits(5)), one.choose(logits(5))] == [second, third]
