"""What the torch engine keeps of earlier requests makes later ones cheaper and changes nothing that they say."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from support.memory import proportional_gb
from visionchat_serve.engines.prompt_parts import SHORTEST
from visionchat_serve.engines.protocol import EngineOutput, EngineRequest
from visionchat_serve.engines.torch_engine import TorchEngine
from visionchat_serve.messages import ImagePart, Message, SamplingParams, TextPart, TokenLogprob, Usage
from visionchat_serve.tiny import CHECKPOINT

from .test_torch_engine import QUESTIONS, picture

PICTURES = [picture(random.Random(number)) for number in range(4)]
SYSTEM = Message("system", (TextPart("Look well, be brief and say only what is there. " * 6),))
ENOUGH = 64 << 20


@pytest.fixture(scope="module")
def plain() -> Iterator[TorchEngine]:
    """Keeps nothing."""
    engine = TorchEngine(CHECKPOINT, threads=1)
    yield engine
    engine.close()


def keeping(keep_bytes: int, dtype: str = "auto") -> TorchEngine:
    return TorchEngine(CHECKPOINT, threads=1, keep_bytes=keep_bytes, dtype=dtype)


def asked(text: str, *pictures: int) -> Message:
    return Message("user", (*(ImagePart(number) for number in range(len(pictures))), TextPart(text)))


def chat(*messages: Message, pictures: tuple[int, ...] = (0,), owner: str = "", tokens: int = 8) -> EngineRequest:
    """Sampled, with the probabilities of what might have come."""
    sampling = SamplingParams(max_tokens=tokens, temperature=1.0, seed=5, logprobs=4)
    return EngineRequest("one", messages, tuple(PICTURES[number] for number in pictures), sampling, owner)


def answer(engine: TorchEngine, request: EngineRequest) -> list[EngineOutput]:
    engine.add(request)
    outputs = []
    while engine.has_work:
        outputs += engine.step()
    return outputs


def numbers(outputs: list[EngineOutput]) -> list[TokenLogprob]:
    return [token for output in outputs for token in output.logprobs]


def said(outputs: list[EngineOutput]) -> str:
    return "".join(output.text for output in outputs)


def usage(engine: TorchEngine, request: EngineRequest) -> Usage:
    return answer(engine, request)[-1].usage


def conversations(count: int) -> Iterator[EngineRequest]:
    """As they come from people: new ones, the same picture asked about anew, the same chat asked on, the same again."""
    chance = random.Random(7)
    open_chats: list[EngineRequest] = []
    for number in range(count):
        if open_chats and chance.random() < 0.7:
            before = chance.choice(open_chats)
            more = (Message("assistant", (TextPart("Red. " * chance.randint(1, 30)),)), asked(chance.choice(QUESTIONS)))
            request = replace(before, messages=before.messages + more * chance.randrange(3))
        else:
            pictures = tuple(chance.sample(range(4), chance.choice([0, 1, 1, 2, 4])))
            first = asked(chance.choice(QUESTIONS), *pictures)
            messages = (SYSTEM, first) if chance.random() < 0.4 else (first,)
            request = chat(*messages, pictures=pictures, owner=chance.choice(["ana", "bob"]), tokens=4)
        open_chats.append(request)
        yield replace(request, id=str(number))


@pytest.mark.parametrize(("keep_bytes", "least"), [(ENOUGH, 15), (1 << 20, 3), (1 << 18, 1)])
def test_nothing_that_is_said_depends_on_what_is_known(plain: TorchEngine, keep_bytes: int, least: int) -> None:
    """To the last bit of every probability, also where there is too little room for most of it."""
    engine = keeping(keep_bytes)
    known = 0
    for request in conversations(40):
        outputs = answer(engine, request)
        assert numbers(outputs) == numbers(answer(plain, request)), request.id
        known += outputs[-1].usage.cached_tokens > 0
        assert engine._kept.bytes <= keep_bytes
    assert known >= least


def test_also_in_bfloat16() -> None:
    engine, plain = keeping(ENOUGH, "bfloat16"), keeping(0, "bfloat16")
    for request in conversations(12):
        assert numbers(answer(engine, request)) == numbers(answer(plain, request)), request.id


def test_a_second_question_about_pictures_reads_only_the_question() -> None:
    engine, all_four = keeping(ENOUGH), (0, 1, 2, 3)  # so many make a part of their own, as one does at full size
    first = usage(engine, chat(asked("What do you see?", *all_four), pictures=all_four))
    assert (first.cached_tokens, first.cached_images) == (0, 0)
    usage(engine, chat(asked("And here?", 1), pictures=(1,)))
    second = usage(engine, chat(asked("Which colour is it?", *all_four), pictures=all_four))
    assert SHORTEST <= second.cached_tokens < second.prompt_tokens
    assert second.cached_images == 4
    behind_text = Message("user", (TextPart("Which colour is it?"), ImagePart(0)))
    third = usage(engine, chat(behind_text))
    assert (third.cached_tokens, third.cached_images) == (0, 1), "another place in the prompt, the same picture"


def test_a_conversation_goes_on_behind_its_last_question() -> None:
    engine = keeping(ENOUGH)
    long = "Say which colours the picture has, from the left to the right, and from the top to the bottom. " * 3
    first = chat(asked(long, 0))
    outputs = answer(engine, first)
    more = (Message("assistant", (TextPart(said(outputs)),)), asked("And its shape?"))
    usage(engine, chat(asked("And here?", 1), pictures=(1,)))
    assert (
        usage(engine, replace(first, messages=first.messages + more)).cached_tokens == outputs[-1].usage.prompt_tokens
    )


def test_several_answers_to_one_question_read_it_once() -> None:
    engine = keeping(ENOUGH)
    request = chat(asked("What do you see?", 0, 1), pictures=(0, 1))
    answer(engine, request)
    again = usage(engine, replace(request, sampling=replace(request.sampling, seed=6)))
    assert (again.cached_tokens, again.cached_images) == (again.prompt_tokens, 2)


def test_nobody_learns_what_others_asked() -> None:
    """Neither by a number nor by the time it takes."""
    engine = keeping(ENOUGH)
    question = asked("What do you see?", 0)
    usage(engine, chat(question, owner="ana"))
    bobs = usage(engine, chat(question, owner="bob"))
    assert (bobs.cached_tokens, bobs.cached_images) == (0, 0)
    assert usage(engine, chat(question, owner="ana")).cached_images == 1


def test_what_is_kept_can_be_given_back() -> None:
    engine = keeping(ENOUGH)
    engine.warm_up()
    assert engine._kept.bytes == 0, "nobody asks on about the warm-up"
    request = chat(asked("What do you see?", 0))
    usage(engine, request)
    for number in range(ENOUGH >> 20):
        engine._kept.put(b"%d" % number, torch.ones(1 << 18), 1 << 20)
    before = proportional_gb(os.getpid())
    engine.forget()
    assert engine._kept.bytes == 0
    assert before - proportional_gb(os.getpid()) > 0.8 * ENOUGH / 1e9, "the process is smaller"
    assert usage(engine, request).cached_tokens == 0
