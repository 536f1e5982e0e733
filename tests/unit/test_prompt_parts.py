"""How prompts are cut, and which parts are the same."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import given

from visionchat_serve.engines.prompt_parts import SHORTEST, Marks, Part, parts_of

IMAGE, TURN, USER, ASSISTANT = 1, 2, 3, 4
MARKS = Marks(image=IMAGE, question=(TURN, USER), answer=(TURN, ASSISTANT))
LONG = [9] * SHORTEST


def cut(ids: list[int], digests: list[bytes] | None = None, owner: str = "") -> list[Part]:
    return parts_of(ids, digests or [], MARKS, owner)


def ends(ids: list[int], digests: list[bytes] | None = None) -> list[int]:
    return [part.end for part in cut(ids, digests)]


def test_cuts_stand_after_system_message_pictures_and_before_answers() -> None:
    system, picture = [TURN, 5, *LONG], [IMAGE] * SHORTEST
    first = [*system, TURN, USER, *picture, 7, *LONG, TURN, ASSISTANT]
    behind_system = len(system) + 2
    behind_picture = behind_system + len(picture)
    assert ends(first, [b"p"]) == [behind_system, behind_picture, len(first)]
    second = [*first, 8, *LONG, TURN, USER, 8, TURN, ASSISTANT]
    assert ends(second, [b"p"]) == [behind_system, behind_picture, len(first), len(second)]


def test_short_parts_are_read_with_the_next() -> None:
    assert ends([TURN, USER, 7, TURN, ASSISTANT]) == [5]
    small = [TURN, USER, IMAGE, 7, *LONG, TURN, ASSISTANT, 8, TURN, USER, 7, TURN, ASSISTANT]
    assert ends(small, [b"p"]) == [4 + SHORTEST + 2, len(small)]
    assert [part.pictures for part in cut(small, [b"p"])] == [range(1), range(1, 1)]


def test_an_earlier_prompt_with_its_answer_begins_a_later_one() -> None:
    first = [TURN, USER, *[IMAGE] * SHORTEST, 7, 7, TURN, ASSISTANT]
    second = [*first, 8, TURN, USER, 9, TURN, ASSISTANT]
    assert [part.key for part in cut(second, [b"p"])][:1] == [part.key for part in cut(first, [b"p"])][:1]
    assert cut(second, [b"p"])[0].key != cut(second, [b"q"])[0].key
    assert cut(second, [b"p"], "ana")[0].key != cut(second, [b"p"], "bob")[0].key


token = st.sampled_from([IMAGE, TURN, USER, ASSISTANT, 7])
prompts = st.lists(st.one_of(token.map(lambda one: [one]), token.map(lambda one: [one] * 70)), min_size=1).map(
    lambda runs: [token for run in runs for token in run]
)


def digests_of(ids: list[int]) -> list[bytes]:
    """Of as many pictures as there are runs of image tokens."""
    starts = [i for i, token in enumerate(ids) if token == IMAGE and (i == 0 or ids[i - 1] != IMAGE)]
    return [b"%d" % number for number in range(len(starts))]


@given(prompts)
def test_parts_are_the_whole_prompt_and_pictures_are_never_cut(ids: list[int]) -> None:
    parts, digests = cut(ids, digests_of(ids)), digests_of(ids)
    assert [part.start for part in parts] == [0, *(part.end for part in parts[:-1])]
    assert parts[-1].end == len(ids)
    assert all(part.is_worth_keeping for part in parts[:-1])
    assert [number for part in parts for number in part.pictures] == list(range(len(digests)))
    assert all(ids[part.end - 1 : part.end + 1] != [IMAGE, IMAGE] for part in parts)


@given(prompts, prompts)
def test_keys_are_the_same_where_the_prompts_are(one: list[int], other: list[int]) -> None:
    """Also of the cuts before: the same tokens cut otherwise would be computed otherwise."""
    some, others = cut(one, digests_of(one)), cut(other, digests_of(other))
    theirs = {part.key: number for number, part in enumerate(others)}
    for number, part in enumerate(some):
        same = [p.end for p in some[: number + 1]] == [p.end for p in others[: number + 1]]
        same = same and one[: part.end] == other[: part.end]
        assert (theirs.get(part.key) == number) == same
