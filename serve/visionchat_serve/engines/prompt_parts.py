"""Where a prompt is cut into parts, each read by itself, so that what two prompts begin with is read once. Pure.

A model's numbers depend, in their last bits, on how many tokens are computed together. So parts are cut by the prompt
alone, whether anything of it was read before or not: the same prompt is always computed in the same way, and an answer
never depends on what else was asked. The cuts stand where prompts that began alike often differ: after a system
message, after each picture, before each answer.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

SHORTEST = 64  # tokens; reading fewer takes nearly as long


@dataclass(frozen=True, slots=True)
class Marks:
    """Token ids: what stands for pictures, and what opens a question and an answer."""

    image: int
    question: tuple[int, ...]
    answer: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Part:
    """Tokens from `start` to before `end`, with the pictures (by number, in order) that stand among them.

    `key` is the same for all prompts of one owner that are the same up to `end`, pictures included.
    """

    start: int
    end: int
    pictures: range
    key: bytes

    @property
    def is_worth_keeping(self) -> bool:
        return self.end - self.start >= SHORTEST


def parts_of(ids: Sequence[int], digests: Sequence[bytes], marks: Marks, owner: str) -> list[Part]:
    """The parts of a prompt, `digests` of its pictures in order. Each but the last has `SHORTEST` tokens or more."""
    picture_ends = [i for i in range(1, len(ids) + 1) if ids[i - 1] == marks.image and ids[i : i + 1] != [marks.image]]
    parts: list[Part] = []
    start, pictures, key = 0, 0, hashlib.sha256(owner.encode()).digest()
    for end in _cuts(ids, picture_ends, marks):
        seen = sum(place <= end for place in picture_ends)
        content = [array("q", ids[start:end]).tobytes(), *digests[pictures:seen]]
        key = hashlib.sha256(b"".join([key, *(hashlib.sha256(one).digest() for one in content)])).digest()
        parts.append(Part(start, end, range(pictures, seen), key))
        start, pictures = end, seen
    return parts


def _cuts(ids: Sequence[int], picture_ends: Sequence[int], marks: Marks) -> Iterator[int]:
    questions, answers = (_ends_of(mark, ids) for mark in (marks.question, marks.answer))
    last = 0
    for end in sorted({*questions[:1], *picture_ends, *answers}):
        if end - last >= SHORTEST and end < len(ids):
            yield end
            last = end
    yield len(ids)


def _ends_of(mark: Sequence[int], ids: Sequence[int]) -> list[int]:
    """Behind each place where `mark` stands."""
    size = len(mark)
    return [i + size for i in range(len(ids)) if ids[i] == mark[0] and tuple(ids[i : i + size]) == tuple(mark)]
