"""The next token, held against transformers' own logits processors."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from visionchat_serve.engines.sampling import CountPenalty, ModelDefaults, RepetitionPenalty, Sampler, _nucleus
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
    ours = RepetitionPenalty(prompt, penalty).apply(logits(seed))
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


def test_presence_counts_once_and_frequency_every_time() -> None:
    penalty = CountPenalty(presence=0.5, frequency=0.25)
    scores = torch.tensor([1.0, 2.0, 3.0])
    assert penalty.apply(scores) is scores
    for token in (1, 1, 1, 2):
        penalty.accept(token)
    assert penalty.apply(scores).tolist() == [1.0, 2.0 - 0.5 - 3 * 0.25, 3.0 - 0.5 - 0.25]
    assert scores.tolist() == [1.0, 2.0, 3.0]


def test_the_count_penalties_leave_the_prompt_alone_and_drive_the_answer_on() -> None:
    scores = torch.tensor([3.0, 2.0, 1.0])
    one = sampler(torch.tensor([0, 0, 0]), temperature=0, presence_penalty=1.5)
    assert [one.choose(scores) for _ in range(4)] == [0, 1, 0, 0]  # 3, then 2 > 3 - 1.5, then both have paid
    often = sampler(temperature=0, frequency_penalty=0.75)
    assert [often.choose(scores) for _ in range(5)] == [0, 0, 1, 0, 1]
    assert [sampler(temperature=0, presence_penalty=-2.0).choose(scores) for _ in range(3)] == [0, 0, 0]


class Forbid:
    """A rule that lets only one token through."""

    def __init__(self, only: int) -> None:
        self.only, self.accepted = only, list[int]()

    def apply(self, scores: torch.Tensor) -> torch.Tensor:
        mask = torch.full_like(scores, float("-inf"))
        mask[self.only] = 0.0
        return scores + mask

    def accept(self, token: int) -> None:
        self.accepted.append(token)


@pytest.mark.parametrize("temperature", [0, 2.0])
def test_nothing_makes_up_for_what_the_grammar_forbids(temperature: float) -> None:
    rule = Forbid(only=2)
    params = SamplingParams(temperature=temperature, presence_penalty=2.0, top_k=1, top_p=0.1, seed=1)
    one = Sampler(params, ModelDefaults(), NO_PROMPT, rule)
    assert [one.choose(torch.tensor([9.0, 5.0, -40.0])) for _ in range(3)] == [2, 2, 2] == rule.accepted


def test_what_is_not_asked_for_does_no_work() -> None:
    """The greedy default looks for the largest number and does nothing else."""
    assert sampler(temperature=0)._rules == []
